"""The vocabulary: frozen values that every layer speaks. No I/O, no wire format."""
