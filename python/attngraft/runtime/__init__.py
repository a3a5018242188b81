"""Running engines: a session that replays CUDA graphs, and the check of an engine before it is loaded."""

from attngraft.runtime.arrays import DeviceArray
from attngraft.runtime.bound import BoundRun
from attngraft.runtime.buckets import Buckets
from attngraft.runtime.preflight import Preflight, preflight_engine
from attngraft.runtime.session import Session
from attngraft.runtime.statistics import Statistics

__all__ = ["BoundRun", "Buckets", "DeviceArray", "Preflight", "Session", "Statistics", "preflight_engine"]
