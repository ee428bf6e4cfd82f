"""The composition root: what a broker is made of, and in which order it starts and stops."""
