"""Files: strict YAML and JSON, the log, manifests and the headers of weights, and where a result comes from."""
