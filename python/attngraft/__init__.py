"""attngraft: attention in TensorRT, found, rewritten, proved, built and served."""
