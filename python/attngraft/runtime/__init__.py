"""Running engines: a session that replays one CUDA graph, and the check of an engine before it is loaded."""

from attngraft.runtime.arrays import DeviceArray
from attngraft.runtime.preflight import Preflight, preflight_engine
from attngraft.runtime.session import Session, Statistics

__all__ = ["DeviceArray", "Preflight", "Session", "Statistics", "preflight_engine"]
