"""What clients tell about themselves (KIP-714): who is asked for what, and what came."""
