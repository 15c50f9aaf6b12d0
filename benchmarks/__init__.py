"""What taskrunner costs beside the bare driver, measured side by side: `./run bench`, or `python -m benchmarks`."""
