"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).

Versions   DescribeConfigs 1-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1,
           ListConfigResources 0-1.
Behaviour  Resources: topics (2), brokers (4; the empty name is the default of all brokers),
           subscriptions to clients' metrics (16) and groups (32), both of which need not exist.
           A subscription without settings is none. Every value is shown with its source and
           synonyms in Kafka's order. A change is in force when it is answered, on topics that
           exist and on this broker, and survives a restart. One bad resource never fails its
           neighbours.
Odd        AlterConfigs replaces everything that is set on a resource, which is why Kafka has
           deprecated it. A broker's settings can only be asked of that broker; any broker changes
           them, also those of one that is away. ListConfigResources 0 lists client metrics only.
Not done   Broker loggers (8) have no settings here: INVALID_REQUEST.
See        KIP-133, KIP-226, KIP-248, KIP-339, KIP-569, KIP-714, KIP-1142
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ottla.config.broker import BrokerConfig
from ottla.config.client_metrics import ClientMetricsConfig
from ottla.config.declare import Settings
from ottla.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from ottla.config.dynamic import (
    AlterOp,
    Change,
    apply_incremental,
    apply_replacement,
    validate_broker_overrides,
    validate_group_overrides,
    validate_topic_overrides,
)
from ottla.config.group import GroupConfig
from ottla.config.topic import TopicConfig
from ottla.controller.service import ConfigChange, ResourceKind
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.names import check_topic_name
from ottla.model.topic import Topic
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.telemetry.subscriptions import validated

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32

LISTABLE = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
LISTS_ANY_TYPE = 1


# ---------------------------------------------------------------------- describing


@handles(
    ApiKey.DESCRIBE_CONFIGS,
    versions=range(1, 5),
    pieces=ListOf("resources", "results", answered_within="configs", piece=2),
)
def describe_configs(
    request: Request[DescribeConfigsRequest], services: Services
) -> DescribeConfigsResponse:
    body = request.body
    results = []
    for resource in body.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
        )
        try:
            entries = _entries(resource.resource_type, resource.resource_name, services)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        else:
            keys = resource.configuration_keys
            result.configs = [
                _shown(entry, body.include_synonyms, body.include_documentation)
                for entry in entries
                if not keys or entry.name in keys
            ]
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _entries(resource_type: int, name: str, services: Services) -> list[ConfigEntry]:
    if resource_type == TOPIC:
        return describe_topic(_topic(name, services).config, services.config)
    if resource_type == BROKER:
        if name == "":
            return describe_broker_default(services.image.broker_configs.get("", {}))
        _check_is_us(name, services)
        return describe_broker(services.config)
    if resource_type == GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(services.image.group_configs.get(name, {}), services.config)
    if resource_type == CLIENT_METRICS:
        if not name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        return describe_client_metrics(services.image.client_metrics.get(name, {}))
    raise _unsupported(resource_type)


def _shown(
    entry: ConfigEntry, synonyms: bool, documentation: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if documentation else None,
    )


# ---------------------------------------------------------------------- changing


def _alter_failed(request: Request[AlterConfigsRequest], error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=_refused(request.body.resources, error))


def _incremental_failed(
    request: Request[IncrementalAlterConfigsRequest], error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=_refused(request.body.resources, error))


def _refused(
    resources: Iterable[AlterConfigsResource | IncrementalAlterConfigsResource], error: KafkaError
) -> list[AlterConfigsResourceResponse]:
    return [
        AlterConfigsResourceResponse(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_code=error.code,
            error_message=error.message,
        )
        for resource in resources
    ]


@handles(
    ApiKey.ALTER_CONFIGS,
    versions=range(3),
    failure=_alter_failed,
    pieces=ListOf("resources", "responses", piece=16, changes=True),
    for_controller=True,
)
async def alter_configs(
    request: Request[AlterConfigsRequest], services: Services
) -> AlterConfigsResponse:
    resources = [
        (
            resource.resource_type,
            resource.resource_name,
            _replacing([(config.name, config.value) for config in resource.configs]),
        )
        for resource in request.body.resources
    ]
    return AlterConfigsResponse(
        responses=await _alter(resources, services, request.body.validate_only)
    )


@handles(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=range(2),
    failure=_incremental_failed,
    pieces=ListOf("resources", "responses", piece=16, changes=True),
    for_controller=True,
)
async def incremental_alter_configs(
    request: Request[IncrementalAlterConfigsRequest], services: Services
) -> IncrementalAlterConfigsResponse:
    resources = [
        (
            resource.resource_type,
            resource.resource_name,
            _changing(
                [
                    (config.name, config.config_operation, config.value)
                    for config in resource.configs
                ]
            ),
        )
        for resource in request.body.resources
    ]
    return IncrementalAlterConfigsResponse(
        responses=await _alter(resources, services, request.body.validate_only)
    )


# What a request makes of the settings there are; the type says which kind of settings they are.
Edit = Callable[[Mapping[str, str], type[Settings]], dict[str, str]]


def _replacing(configs: list[tuple[str, str | None]]) -> Edit:
    def edit(current: Mapping[str, str], kind: type[Settings]) -> dict[str, str]:
        return apply_replacement(configs)

    return edit


def _changing(configs: list[tuple[str, int, str | None]]) -> Edit:
    def edit(current: Mapping[str, str], kind: type[Settings]) -> dict[str, str]:
        try:
            changes = [
                Change(name, AlterOp(operation), value) for name, operation, value in configs
            ]
        except ValueError:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Unknown operation type in the request."
            ) from None
        return apply_incremental(current, changes, kind)

    return edit


async def _alter(
    resources: list[tuple[int, str, Edit]], services: Services, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    named = Counter((kind, name) for kind, name, _ in resources)
    responses = []
    for kind, name, edit in resources:
        response = AlterConfigsResourceResponse(resource_type=kind, resource_name=name)
        try:
            if named[kind, name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            change = _change(kind, name, edit, services)
            (outcome,) = await services.controller.alter_configs(
                [change], validate_only=validate_only
            )
            if outcome.error is not None:
                raise outcome.error
        except KafkaError as error:
            response.error_code = error.code
            response.error_message = error.message
        responses.append(response)
    return responses


def _change(kind: int, name: str, edit: Edit, services: Services) -> ConfigChange:
    """The change for the controller: edit what is there, then judge the result."""

    def topic(current: Mapping[str, str]) -> Mapping[str, str]:
        return validate_topic_overrides(edit(current, TopicConfig), services.config)

    def broker(current: Mapping[str, str]) -> Mapping[str, str]:
        return validate_broker_overrides(
            edit(current, BrokerConfig), per_broker=name != "", broker=services.config
        )

    def group(current: Mapping[str, str]) -> Mapping[str, str]:
        return validate_group_overrides(edit(current, GroupConfig), services.config)

    if kind == TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        return ConfigChange(ResourceKind.TOPIC, name, topic)
    if kind == GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        return ConfigChange(ResourceKind.GROUP, name, group)
    if kind == BROKER:
        # The controller changes the settings of any broker: the request was handed on to it.
        known = services.image.registrations.keys() | services.image.broker_states.keys()
        if name != "" and not (name.isdecimal() and int(name) in known):
            _check_is_us(name, services)
        return ConfigChange(ResourceKind.BROKER, name, broker)
    return _other_change(kind, name, edit)


def _other_change(kind: int, name: str, edit: Edit) -> ConfigChange:
    """The same for what has no defaults in the broker's settings."""
    if kind != CLIENT_METRICS:
        raise _unsupported(kind)

    def client_metrics(current: Mapping[str, str]) -> Mapping[str, str]:
        return validated(name, edit(current, ClientMetricsConfig))

    return ConfigChange(ResourceKind.CLIENT_METRICS, name, client_metrics)


# ---------------------------------------------------------------------- listing


def _list_failed(
    request: Request[ListConfigResourcesRequest], error: KafkaError
) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=error.code, config_resources=[])


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=range(2), failure=_list_failed)
def list_config_resources(
    request: Request[ListConfigResourcesRequest], services: Services
) -> ListConfigResourcesResponse:
    wanted = set(request.body.resource_types)
    if request.api_version < LISTS_ANY_TYPE:
        wanted = {CLIENT_METRICS}
    elif not wanted:
        wanted = set(LISTABLE)
    elif not wanted.issubset(LISTABLE):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    image = services.image
    names: dict[int, Iterable[str]] = {
        TOPIC: image.topics,
        BROKER: map(str, image.brokers),
        BROKER_LOGGER: map(str, image.brokers),
        CLIENT_METRICS: image.client_metrics,
        GROUP: image.group_configs,
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in LISTABLE
            if kind in wanted
            for name in names.get(kind, ())
        ]
    )


# ---------------------------------------------------------------------- shared


def _topic(name: str, services: Services) -> Topic:
    topic = services.image.topics.get(name)
    if topic is None:
        check_topic_name(name)
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    return topic


def _check_is_us(name: str, services: Services) -> None:
    try:
        broker = int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if broker != services.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {services.node_id}, but received {name}",
        )


def _unsupported(kind: int) -> KafkaError:
    what = "Unsupported" if kind in LISTABLE else "Unknown"
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{what} resource type {kind}")
