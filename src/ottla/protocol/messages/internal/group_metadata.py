"""Groups of the classic protocol, as `__consumer_offsets` keeps them: record type 2."""

from __future__ import annotations

from ottla.protocol.schema import array, binary, int32, int64, message, string, struct


@message(api_key=2, kind="data", versions="0", flexible="none")
class GroupMetadataKey:
    """Which group."""

    group: str = string()


@struct
class MemberMetadata:
    """One member of a generation, with the subscription it gave and the assignment it got."""

    member_id: str = string()
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", ignorable=True, default=None
    )
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(versions="1+", ignorable=True, default=0)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


@message(api_key=2, kind="data", versions="0-4", flexible="4+")
class GroupMetadataValue:
    """One generation. 1 rebalance timeout, 2 since when, 3 static members, 4 flexible."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64(versions="2+", ignorable=True, default=-1)
    members: list[MemberMetadata] = array(MemberMetadata)
