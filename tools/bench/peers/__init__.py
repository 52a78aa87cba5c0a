"""What scripts/bench.py runs in the environments of the peers: worker.py, and a module run_NAME.py for each."""
