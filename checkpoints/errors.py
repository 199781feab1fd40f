"""What can be wrong with a checkpoint.

CheckpointError             a ValueError; the message names what came, what was expected, and what to do
|-- NotACheckpoint          the folder, the manifest or a listed file is absent, or is not the JSON it should be
|-- TamperedCheckpoint      a file's bytes are not the ones the manifest (or the caller's digest) vouches for
|-- UnsafeModel             could harm the reader: too large, a link, external data, unknown operators, NaN weights
|-- ContractMismatch        format version, manifest fields, or names, types and shapes of inputs and outputs
|-- GoldenMismatch          the graph gives other numbers than were recorded, or, when saving, than the original
|-- CheckpointExists        saving would replace something
`-- HubError                the hub cannot be reached, refuses, or says what it must not; or its library is missing

UntrustedCheckpoint         a UserWarning: it is whole and runs, but its numbers cannot be believed
MovingRevision              a UserWarning: it came from a branch or tag of the hub, which may be another one tomorrow
"""


class CheckpointError(ValueError):
    """Base of everything that is wrong with a checkpoint."""


class NotACheckpoint(CheckpointError):
    """Something that must be there is absent or unreadable."""


class TamperedCheckpoint(CheckpointError):
    """Bytes differ from those vouched for."""


class UnsafeModel(CheckpointError):
    """Refused before anything parses or runs it."""


class ContractMismatch(CheckpointError):
    """What is offered and what is expected have different names, types, shapes or versions."""


class GoldenMismatch(CheckpointError):
    """The graph gives other numbers than it should."""


class CheckpointExists(CheckpointError):
    """Saving would replace something."""


class HubError(CheckpointError):
    """The hub gives nothing, or not what was asked of it."""


class UntrustedCheckpoint(UserWarning):
    """The numbers of the checkpoint that was loaded cannot be believed; the message names the audits that failed."""


class MovingRevision(UserWarning):
    """The checkpoint came from a revision of the hub that is no commit; the message names the commit to pin."""
