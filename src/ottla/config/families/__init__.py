"""The broker settings, one module per family."""
