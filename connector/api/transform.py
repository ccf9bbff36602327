"""What a transform is: it takes a batch and returns the batch that goes on, with records left out or columns changed.

Each pipeline makes its own instances and calls every method on the pipeline's thread, so a transform needs no locks.
Raise `PoisonError` for a batch with a record that can never be transformed, `RecordErrors` if you know which ones,
`TransientError` for what may work later; with any other exception the transform has failed, and its pipeline starts
anew. The same records come again after an error, and in smaller batches, so let `apply` change nothing elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, get_args, get_origin

from connector.api.settings import Settings

if TYPE_CHECKING:
    from connector.api.batch import Batch
    from connector.api.sink import SinkContext

S = TypeVar("S", bound=Settings)


class Transform(Generic[S]):
    """Base of every transform. The type argument is the settings model: `class MyTransform(Transform[MySettings])`."""

    settings_type: ClassVar[type[Settings]] = Settings

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Transform and isinstance(get_args(base)[0], type):
                cls.settings_type = get_args(base)[0]

    def __init__(self, settings: S, context: SinkContext) -> None:
        self.settings = settings
        self.context = context

    def open(self) -> None:
        """Connect and prepare. Called before any batch; again after a `TransientError`, with backoff."""

    def apply(self, batch: Batch) -> Batch:
        """Return what goes on: this batch, or what `batch.select` and `batch.with_column` make of it.

        Records that are left out count as done (INV-8); `batch.select(())` leaves out all. The order of the rest and
        the metadata stay.
        """
        raise TypeError(f"{type(self).__name__} does not implement apply")

    def close(self) -> None:
        """Let go of everything; called once, also after a failed `open`."""
