"""Settings: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44),
ListConfigResources (74).

A resource is a type and a name: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
"""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct


@struct
class DescribeConfigsResource:
    """A resource, and which of its settings; null for all."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable="0+")


@message(api_key=32, kind="request", versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Asks for settings. 3 documentation, 4 flexible."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean(versions="3+", default=False)


@struct
class DescribeConfigsSynonym:
    """A place from which the value could also have come, in order of precedence."""

    name: str = string()
    value: str | None = string(nullable="0+")
    source: int = int8()


@struct
class DescribeConfigsResourceResult:
    """One setting.

    Sources: 1 topic, 2 broker dynamic, 3 cluster-wide dynamic, 4 static file, 5 default, 6 broker
    logger, 7 client metrics, 8 group. Types (3): 1 boolean, 2 string, 3 int, 4 short, 5 long,
    6 double, 7 list, 8 class, 9 password.
    """

    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = int8(versions="3+", ignorable=True, default=0)
    documentation: str | None = string(versions="3+", nullable="0+", ignorable=True, default="")


@struct
class DescribeConfigsResult:
    """The settings of one resource; Kafka's message is empty, not null, when all is well."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@message(api_key=32, kind="response", versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The settings. 3 type and documentation, 4 flexible."""

    throttle_time_ms: int = int32(default=0)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


@struct
class AlterableConfig:
    """A setting and its new value; null removes it."""

    name: str = string()
    value: str | None = string(nullable="0+")


@struct
class AlterConfigsResource:
    """All dynamic settings that a resource shall have."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(api_key=33, kind="request", versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replaces the dynamic settings of resources as a whole. 2 flexible."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    """What became of one resource."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resource_type: int = int8()
    resource_name: str = string()


@message(api_key=33, kind="response", versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """The changed resources. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class IncrementalAlterableConfig:
    """A change: 0 set, 1 delete, 2 append to a list, 3 subtract from it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+")


@struct
class IncrementalAlterConfigsResource:
    """The changes to one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@message(api_key=44, kind="request", versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Changes single settings (KIP-339). 1 flexible."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = boolean()


@message(api_key=44, kind="response", versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """The changed resources. 1 flexible."""

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@message(api_key=74, kind="request", versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """Asks which resources have settings (KIP-1142).

    Version 0 is the former ListClientMetricsResources; in 1 no types means all types.
    """

    resource_types: list[int] = array(int8, versions="1+", factory=list)


@struct
class ConfigResource:
    """One resource; in 0 always client metrics."""

    resource_name: str = string()
    resource_type: int = int8(versions="1+", ignorable=True, default=16)


@message(api_key=74, kind="response", versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The resources."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource)
