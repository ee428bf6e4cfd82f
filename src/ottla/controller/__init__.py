"""The one broker that decides: topic creation, growth, deletion, placement and settings."""
