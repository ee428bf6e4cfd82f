"""How Kafka's tools spell a failure: the name of a Java exception and its standing sentence.

Scripts look for `GroupNotEmptyException` and the like, so the tools that print exceptions in Kafka
print the same here. A code that is not listed is named after itself.
"""

from __future__ import annotations

from ottla.errors import ErrorCode, KafkaError

_PACKAGE = "org.apache.kafka.common.errors."

_SPELLED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "UnknownTopicOrPartitionException",
        "This server does not host this topic-partition.",
    ),
    ErrorCode.BROKER_ID_NOT_REGISTERED: (
        "BrokerIdNotRegisteredException",
        "The given broker ID was not registered.",
    ),
    ErrorCode.REQUEST_TIMED_OUT: ("TimeoutException", "The request timed out."),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (
        "CoordinatorLoadInProgressException",
        "The coordinator is loading and hence can't process requests.",
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "CoordinatorNotAvailableException",
        "The coordinator is not available.",
    ),
    ErrorCode.NOT_COORDINATOR: (
        "NotCoordinatorException",
        "This is not the correct coordinator.",
    ),
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: (
        "PreferredLeaderNotAvailableException",
        "The preferred leader was not available.",
    ),
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: (
        "EligibleLeadersNotAvailableException",
        "Eligible topic partition leaders are not available.",
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "InvalidTopicException",
        "The request attempted to perform an operation on an invalid topic.",
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "UnsupportedVersionException",
        "The version of API is not supported.",
    ),
    ErrorCode.INVALID_GROUP_ID: ("InvalidGroupIdException", "The group id is invalid."),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "UnknownMemberIdException",
        "The coordinator is not aware of this member.",
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "TopicAuthorizationException",
        "Topic authorization failed.",
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "GroupAuthorizationException",
        "Group authorization failed.",
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "ClusterAuthorizationException",
        "Cluster authorization failed.",
    ),
    ErrorCode.NON_EMPTY_GROUP: ("GroupNotEmptyException", "The group is not empty."),
    ErrorCode.GROUP_ID_NOT_FOUND: ("GroupIdNotFoundException", "The group id does not exist."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "GroupSubscribedToTopicException",
        "Deleting offsets of a topic is forbidden while the consumer group is actively "
        "subscribed to it.",
    ),
}


def sentence(code: ErrorCode) -> str:
    """What Kafka says about a code when the broker has said nothing."""
    _, text = _SPELLED.get(code, ("", code.text))
    return text


def spelled(code: ErrorCode, message: str | None = None) -> str:
    """`org.apache.kafka.common.errors.GroupIdNotFoundException: The group id does not exist.`"""
    name, text = _SPELLED.get(code, (f"{code.name.title().replace('_', '')}Exception", code.text))
    return f"{_PACKAGE}{name}: {message or text}"


def spell_error(error: KafkaError) -> str:
    """An exception of ours, spelled so."""
    return spelled(error.code, error.message)
