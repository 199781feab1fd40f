"""The errors and warnings about checkpoints.

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
    """The base class of all errors about a checkpoint."""


class NotACheckpoint(CheckpointError):
    """The folder, the manifest or a listed file is absent or unreadable."""


class TamperedCheckpoint(CheckpointError):
    """A file's bytes differ from those that the manifest, or the caller's digest, names."""


class UnsafeModel(CheckpointError):
    """A file could harm the reader, and was refused before anything parsed or ran it."""


class ContractMismatch(CheckpointError):
    """Names, types, shapes or versions differ between what was given and what is expected."""


class GoldenMismatch(CheckpointError):
    """The graph gives other numbers than were recorded."""


class CheckpointExists(CheckpointError):
    """Saving would replace an existing folder or file."""


class HubError(CheckpointError):
    """The hub cannot be reached, refuses, or gives something else than was asked for."""


class UntrustedCheckpoint(UserWarning):
    """The numbers of the checkpoint that was loaded cannot be believed; the message names the audits that failed."""


class MovingRevision(UserWarning):
    """The checkpoint came from a revision of the hub that is no commit; the message names the commit to pin."""
