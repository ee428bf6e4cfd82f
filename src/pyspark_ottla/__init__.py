"""What Spark looks for when it reads `format("ottla")`: a module of this name with this class."""

from ottla.pipelines.datasource import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
