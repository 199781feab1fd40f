"""The errors and warnings about checkpoints.

CheckpointError             a ValueError; the message names what came, what was expected, and what to do
|-- NotACheckpoint          the folder, the manifest or a listed file is missing, or is not the expected JSON
|-- TamperedCheckpoint      a file's bytes differ from the hash in the manifest, or from the caller's digest
|-- UnsafeModel             could harm the reader: too large, a link, external data, unknown operators, NaN weights
|-- ContractMismatch        wrong format version, manifest fields, or names, types and shapes of inputs and outputs
|-- GoldenMismatch          the graph's outputs differ from the recorded ones, or, when saving, from the original
|-- CheckpointExists        saving would replace something
`-- HubError                the hub cannot be reached, refuses, or answers wrongly; or its library is missing
UntrustedCheckpoint         a UserWarning: the checkpoint runs, but its numbers cannot be believed
MovingRevision              a UserWarning: it came from a branch or tag of the hub, which may change later
"""


class CheckpointError(ValueError):
    """The base class of all errors about a checkpoint."""


class NotACheckpoint(CheckpointError):
    """The folder, the manifest or a listed file is absent or unreadable."""


class TamperedCheckpoint(CheckpointError):
    """A file's bytes differ from the hash in the manifest, or from the caller's digest."""


class UnsafeModel(CheckpointError):
    """A file could harm the reader, and was refused before anything parsed or ran it."""


class ContractMismatch(CheckpointError):
    """Names, types, shapes or versions differ from the expected ones."""


class GoldenMismatch(CheckpointError):
    """The graph's outputs differ from the recorded ones."""


class CheckpointExists(CheckpointError):
    """Saving would replace an existing folder or file."""


class HubError(CheckpointError):
    """The hub cannot be reached, refuses, or answers with something unexpected."""


class UntrustedCheckpoint(UserWarning):
    """The numbers of the loaded checkpoint cannot be believed. The message names the audits that failed."""


class MovingRevision(UserWarning):
    """The checkpoint came from a revision of the hub that is no commit. The message names the commit to pin."""
