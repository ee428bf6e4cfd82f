"""The sinks of pipelines, one module each; `catalog.py` lists them."""
