# SPDX-License-Identifier: Apache-2.0
import enum
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy
import numpy.typing

def check_ids() -> list[str]: ...

__version__: str

class DLPack(typing.Protocol):
    """An array of NumPy, torch or any other library."""

    def __dlpack__(self) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[typing.Any, typing.Any]: ...

class Dtype(enum.Enum):
    """Element types that are read and summed."""

    FLOAT32 = 0

    FLOAT64 = 1

    BFLOAT16 = 2

    FLOAT16 = 3

class Read(enum.Enum):
    """What is to be read of the pass that begins."""

    NOTHING = 0

    SUMS = 1
    """What .grad holds once it has accumulated."""

    ARRIVALS = 2
    """What is added to it: it held something before."""

class Mark(enum.Enum):
    """What a time on a device's clock is of (see src/step/phases.h)."""

    STEP_ENDS = 0

    EVALUATES = 1

    FORWARD = 2

    BACKWARD = 3

    PASS_ENDS = 4

    REDUCED = 5

    OPTIMIZER_BEGINS = 6

    OPTIMIZER_ENDS = 7

class StateKind(enum.Enum):
    """What a state is a hash of."""

    PARAMETERS = 1

    BUFFERS = 2

    OPTIMIZER = 3

    WATCHED = 4

    FROZEN = 5

    OUTSIDE = 6

class SnapshotKind(enum.Enum):
    """When a snapshot was taken."""

    BEGUN = 1

    SAVED = 2

    LEFT = 3

class FingerprintKind(enum.IntEnum):
    """docs/runlog_format.md, kinds of fingerprints."""

    RNG_TORCH = 1

    RNG_DEVICE = 2

    RNG_NUMPY = 3

    RNG_PYTHON = 4

    FORWARD_DRAWS = 5

    SAMPLER_CLASS = 10

    SAMPLER_SEED = 11

    SAMPLER_EPOCH = 12

    SAMPLER_RANK = 13

    SAMPLER_REPLICAS = 14

    SAMPLER_LENGTH = 15

    SAMPLER_SHUFFLE = 16

    SAMPLER_DROP_LAST = 17

    SAMPLER_SETS_EPOCH = 18

    DATA_CLASS = 20

    DATA_LENGTH = 21

    DATA_ATTRIBUTES = 22

    DATA_PASS = 23

    DATA_BATCH = 24

    DATA_SUBSET = 25

    DATA_CONTENTS = 26

    DATA_ENDED = 27

    MODE = 30

    MODES = 31

    DROPOUT = 32

    DROPOUTS = 33

    NORM_BATCHES = 34

    TIED_PARAMETERS = 35

    OPTIMIZER_CLASS = 40

    OPTIMIZER_SETTINGS = 41

    LEARNING_RATE = 42

    WEIGHT_DECAY = 43

    DTYPE = 50

    DETERMINISM = 51

    WRAPPER_FORWARD = 61

    GRADIENT_WEIGHT = 62

    ZERO_SHARE = 63

    CLIP_NORM = 64

    CLIPPED_NORM = 65

    GRAD_NORM_TOLD = 66

    GRAD_NORM_THEN = 67

    PASSES_CLEARED = 68

    FORWARDS_DETACHED = 69

    BATCH = 70

    UNREAD_INPUTS = 71

    LABELS = 72

    GRAD_CHANGED = 73

    UNCHANGED_SHARE = 74

    RECOMPUTED = 75

    CLIP_LIMIT = 76

    COMPARED_DIFFERENT = 77

    LEFT_OVER = 78

    CLIP_NORM_TYPE = 79

    FORWARD_PRECISION = 80

    STEPS_OF_OTHERS = 81

    STEPS_IN_VAIN = 82

    BELOW_FP16 = 83

    LOSS_SCALE = 84

    CLIPPED_SHARE = 85

    INPUT_MEAN = 86

    INPUT_SPREAD = 87

    AS_STEPPED = 88

    DATA_SHARE = 89

    ROWS_CUT = 90

    ROWS_PASSED_OVER = 91

    BATCH_AGAIN = 92

    GRAD_FACTOR = 93

    BACKWARD_ORDER = 94

    ROWS_CHANGED = 95

class Late:
    """A number that is still on its device: its place."""

    def __init__(self, place: int) -> None: ...

class EndedStep:
    """
    A step that has ended, until its packet is made (see src/step/ended_step.h). One thread at a time.
    """

    def samples(self, hashes: Sequence[int]) -> None: ...
    def indices(self, indices: Sequence[int]) -> None: ...
    def fingerprint(self, kind: FingerprintKind, value: int) -> None: ...
    def gram(self, share: DLPack) -> None: ...
    def begin_states(self) -> None: ...
    def state_sum(self, kind: StateKind, index: int, fingerprint: int, shard: int = 0) -> None: ...
    def watched(
        self,
        name: str,
        index: int,
        fingerprint: int,
        kind: StateKind = StateKind.WATCHED,
        shard: int = 0,
    ) -> None: ...
    def gradient_sums(
        self,
        parameter: int,
        elements: int,
        reduced: bool,
        sum_squares: float,
        max_abs: float,
        nonfinite: int,
        fingerprint: int,
        zeros: int,
    ) -> None: ...
    def add_sketch(self, values: DLPack) -> None: ...
    def no_sketch(self) -> None: ...
    def numbers(self, come: Sequence[float]) -> None: ...
    def rows(self, hashes: Sequence[int], others: int) -> None: ...
    def times(self, marks: Sequence[tuple[Mark, float]]) -> None: ...
    def packet(self) -> bytes: ...

def wait_begins(*args: object, **kwargs: object) -> None:
    """
    This thread waits for other ranks from now on (see src/step/waits.h), whatever the arguments. May be nested.
    """

def wait_ends() -> None:
    """It does no more. Without a beginning it does nothing."""

class Observer:
    """
    The steps of one model on one rank, as packets (see src/step/steps.h). One thread at a time.
    """

    def __init__(
        self,
        *,
        model_index: int,
        replica: int,
        dp_group: int,
        rank: int,
        replicas: int,
        sketch_size: int,
        host: str,
        facts: Sequence[tuple[str, str]],
        parameters: Sequence[tuple[str, int, str]],
        buffers: Sequence[tuple[str, int, str]],
        every: int = 1,
        reduced_every: int = 1,
        knows_optimizer: bool = False,
        one_optimizer: bool = False,
        on_host: bool = True,
    ) -> None: ...
    def samples(self, hashes: Sequence[int]) -> None: ...
    def indices(self, indices: Sequence[int]) -> None: ...
    def fingerprint(self, kind: FingerprintKind, value: int) -> None: ...
    def gram(self, share: DLPack) -> None: ...
    def begin_states(self) -> None: ...
    def state_sum(self, kind: StateKind, index: int, fingerprint: int, shard: int = 0) -> None: ...
    def watched(
        self,
        name: str,
        index: int,
        fingerprint: int,
        kind: StateKind = StateKind.WATCHED,
        shard: int = 0,
    ) -> None: ...
    def gradient_sums(
        self,
        parameter: int,
        elements: int,
        reduced: bool,
        sum_squares: float,
        max_abs: float,
        nonfinite: int,
        fingerprint: int,
        zeros: int,
    ) -> None: ...
    def add_sketch(self, values: DLPack) -> None: ...
    def no_sketch(self) -> None: ...
    def forward(self, left: float | Late = float("nan")) -> None: ...
    def evaluates(self) -> None: ...
    def backward(self, certain: bool) -> None: ...
    def enter_wrapper(self) -> None: ...
    def enter_module(self) -> bool: ...
    @property
    def asks_what_is_left(self) -> bool: ...
    @property
    def next_is_recorded(self) -> bool: ...
    @property
    def turn(self) -> int: ...
    @property
    def in_window(self) -> bool: ...
    @property
    def window_begins(self) -> bool: ...
    def reached(
        self,
        forward: int,
        loss: float | Late | None,
        tokens: float | Late,
        share: float | Late | None,
    ) -> None: ...
    def forget_reached(self) -> None: ...
    @property
    def needs_root(self) -> bool: ...
    def pass_begins(
        self, reduces: bool, more_follow: bool, readable: bool, held: float | Late
    ) -> Read: ...
    def pass_ends(
        self,
        scale: float | Late,
        root: float | Late | None,
        share_factor: float,
        gradient_factor: float,
        targets: float | Late,
        targets_weight: float | Late,
        part: bool,
    ) -> None: ...
    @property
    def records(self) -> bool: ...
    @property
    def collects(self) -> bool: ...
    @property
    def windows(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def passes(self) -> int: ...
    def reduced_is_due(self) -> bool: ...
    def postpone_reduced(self) -> None: ...
    def reduction(self) -> None: ...
    def shadow(self) -> None: ...
    def arrives(self, parameter: int) -> None: ...
    def mark_seen(self, parameter: int) -> None: ...
    def seen(self, parameter: int) -> bool: ...
    @property
    def unseen(self) -> list[int]: ...
    def skip(self, count: int) -> None: ...
    def seed(self, parameter: int) -> int: ...
    def group(self, parameter: int) -> str: ...
    def zeroed(self, changed: bool) -> None: ...
    def optimizer_begins(self) -> None: ...
    @property
    def in_optimizer_step(self) -> bool: ...
    def optimizer_fails(self) -> None: ...
    def optimizer_steps(self, which: int) -> None: ...
    @property
    def optimizer_steps_done(self) -> int: ...
    def closed(self) -> None: ...
    @property
    def steps(self) -> int: ...
    def take_ended(self) -> EndedStep | None: ...
    def fact(self, key: str, value: str) -> None: ...
    def state(
        self,
        kind: StateKind,
        index: int,
        address: int,
        count: int,
        element_bytes: int,
        shard: int = 0,
    ) -> None: ...
    def watch(self, name: str) -> None: ...
    def hello(self) -> bytes: ...
    def begin_step(self, step: int) -> None: ...
    def gradient(self, parameter: int, address: int, count: int, dtype: Dtype) -> None: ...
    def reduced_gradient(self, parameter: int, address: int, count: int, dtype: Dtype) -> None: ...
    def gradient_part(
        self,
        parameter: int,
        address: int,
        count: int,
        dtype: Dtype,
        first: int,
        shard: int,
        scale: float,
        reduced: bool,
        added: bool = False,
    ) -> None: ...
    @property
    def layers_due(self) -> bool: ...
    def layer_unknown(self, parameter: int) -> None: ...
    def loss(self, value: float | Late, weight: float, tokens: int) -> None: ...
    def end_step(
        self,
        optimizer_step: int,
        micro_batches: int,
        skipped_parameters: int,
        gradient_scale: float,
    ) -> bytes: ...
    def broken(self, text: str) -> bytes: ...
    def note(self, text: str) -> bytes: ...
    def goodbye(
        self,
        optimizer_steps: int,
        fingerprints: Sequence[tuple[FingerprintKind, int]] = [],
        text: str = "",
    ) -> bytes: ...
    def audit(self, record: AuditRecord, *, repeat: bool | None = None) -> None: ...

def hash_rows(rows: DLPack, mask: DLPack | None = None) -> list[int]:
    """
    A 64-bit hash of each row of a batch, without its padding. mask: of the same shape, zero where a position is left out.
    """

def hash_bytes(data: object, seed: int = 0) -> int:
    """A 64-bit hash of anything with the buffer protocol."""

def hash_array(values: DLPack) -> int:
    """A 64-bit hash of an array's bytes."""

def hash_memory(address: int, bytes: int) -> int:
    """The same, of what lies at an address."""

def stamp(packet: bytes, run: int, segment: int, dropped: int = 0) -> bytes:
    """
    The packet with what the aggregator announced and its sender has counted.
    """

def canonical_name(name: str) -> str: ...
def simd_targets() -> tuple[list[str], list[str]]:
    """
    Names of the targets of this processor, and of those compiled in that it lacks.
    """

def simd_target() -> str:
    """Name of the SIMD target in use; PRESUM_SIMD forces one."""

class Snapshots:
    """
    Where the training of one worker stands, as packets (see src/step/snapshots.h). One thread at a time.
    """

    def __init__(self, observer: Observer) -> None: ...
    def begin(self, kind: SnapshotKind, optimizer_steps: float, learning_rate: float) -> None: ...
    def generator(self, kind: int, value: int) -> None: ...
    def parameter(
        self,
        parameter: int,
        address: int,
        count: int,
        dtype: Dtype,
        first: int,
        shard: int,
        in_order: bool,
    ) -> None: ...
    def sums(
        self,
        parameter: int,
        fingerprint: int,
        squares: float,
        elements: int,
        formats: int,
        shard: int,
    ) -> None: ...
    def state(self, parameter: int, fingerprint: int) -> None: ...
    def state_at(self, parameter: int, address: int, count: int, element_bytes: int) -> None: ...
    def packet(self) -> bytes: ...

class RowMatcher:
    """
    Which of the batches that loaders handed out a forward pass was given, by hashes of rows. Whole calls do not overlap.
    """

    def __init__(self) -> None: ...
    def offer(self, batch: int, rows: Mapping[int, Sequence[int]], trains: bool) -> int:
        """
        A batch, by the places of its tensors; returns the oldest that is still known.
        """

    def take(
        self, hashes: Sequence[int], offered: int, trains: bool
    ) -> list[tuple[int, int, int] | None]:
        """For each hash batch, place and row, or None."""

class HostValues:
    """A few elements of tensors in host memory."""

    def __init__(self, arrays: Sequence[DLPack], each: int) -> None:
        """At most so many of each array, at equal distances."""

    def factor_to(self, now: HostValues) -> float | None:
        """
        What multiplied them since: 1 where every bit is what it was, NaN where it is no factor, None where that is not known.
        """

class Aggregator:
    """
    Packets of all ranks into one run log (see presum/aggregator.h). One thread at a time.
    """

    def __init__(self, run: str | os.PathLike[str], world_size: int = 0) -> None: ...
    @property
    def run(self) -> int: ...
    @property
    def segment(self) -> int: ...
    @property
    def everyone_left(self) -> bool: ...
    @property
    def ranks_heard(self) -> int: ...
    @property
    def stall(self) -> str: ...
    @property
    def processes(self) -> list[tuple[int, str, str, str]]: ...
    def process_ended(self, rank: int, signal: int, exit_code: int) -> None: ...
    @property
    def counters(self) -> dict[str, int]: ...
    def ingest(self, packet: bytes) -> None: ...
    def tick(self) -> None: ...
    def take_new_findings(self) -> list[dict[str, Any]]: ...
    def findings(self) -> list[dict[str, Any]]: ...
    def take_notices(self) -> list[str]: ...
    def verdict(self) -> str: ...
    def end_preflight(self, require_statistics: bool = False) -> int: ...
    def too_short(self) -> str: ...
    def lose_others(self, why: str) -> None: ...
    def abandon(self, why: str) -> None: ...
    def incomplete(self) -> str: ...
    def close(self) -> None: ...

class RunLog:
    """An open run log (see presum/run_log.h). One thread at a time."""

    def __init__(self, run: str | os.PathLike[str]) -> None: ...
    def frame(
        self, table: str, after: int = 0, up_to: int = ...
    ) -> list[tuple[str, numpy.typing.NDArray[Any], list[str] | None]]:
        """
        Columns of a table: name, values, and texts that the values are positions in. Of tables about steps, only those after step number `after`, up to `up_to` (steps_written).
        """

    def steps_written(self) -> int:
        """
        Number of steps of all models and segments, in the order in which they were written.
        """

    def report(self) -> str:
        """What `presum report` writes."""

    def page_data(self) -> str:
        """The data of that page, as JSON."""

    def group_norms(self) -> list[tuple[str, numpy.typing.NDArray[Any], list[str] | None]]: ...
    def findings(self) -> list[dict[str, Any]]: ...
    def judgment(self) -> tuple[str, str]:
        """
        The verdict with its coverage as one line, and what `presum findings --format json` prints.
        """

    def cosines(
        self, segment: int, model_index: int, dp_group: int, step: int
    ) -> numpy.typing.NDArray[numpy.float32]: ...

def live_page(nonce: str) -> str:
    """The page of `presum report` that fetches its data from beside it."""

def stored_tables() -> list[tuple[str, str, list[tuple[str, str, str, str, str]]]]:
    """
    Name, meaning and columns (name, type, unit, meaning, unknown) of the file's tables.
    """

def shown_tables() -> list[tuple[str, str, list[tuple[str, str, str, str, str]]]]:
    """The same of the tables for people."""

def cli_main(args: Sequence[bytes]) -> int:
    """
    Runs a C++ verb, its words as the system has them; returns the exit code.
    """

CUDA_KERNELS: int

def cuda_lacks() -> str | None:
    """
    Why the CUDA kernels cannot run on the current device; None where they can.
    """

def cuda_on_host(on: bool) -> None:
    """
    Runs kernels on the host, in host memory, and writes launches down; for tests.
    """

def cuda_launched() -> list[tuple[str, int, int, int]]:
    """Of those: the kernel, blocks, bytes of gradients, other bytes."""

def cuda_hash_rows(
    data: int,
    rows: int,
    columns: int,
    element_bytes: int,
    mask: int,
    mask_bytes: int,
    hashes: int,
    stream: int,
) -> None:
    """hash_rows in device memory, on a stream."""

class GradientBatch:
    """Gradients of one dtype that one launch reads."""

    @staticmethod
    def create(dtype: Dtype, sketch_size: int) -> GradientBatch: ...
    def add(self, address: int, count: int, seed: int) -> None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def list_bytes(self) -> int: ...
    @property
    def partials_bytes(self) -> int: ...
    def write_list(self, to: int) -> None: ...
    @staticmethod
    def most_blocks(sketch_size: int) -> int: ...

class DeviceSums:
    """What the batches of a step come to."""

    def __init__(self, sketch_size: int) -> None: ...
    def read(
        self,
        *,
        batch: GradientBatch,
        list: int,
        partials: int,
        rows: int,
        rows_in_use: int,
        stream: int,
    ) -> None: ...
    def add_sketches(self, rows: int, count: int) -> None: ...
    @property
    def gradients(self) -> int: ...
    @property
    def list_bytes(self) -> int: ...
    def write_list(self, to: int) -> None: ...
    def finish(self, *, list: int, found: int, sketch: int, stream: int) -> None: ...

CUDA_NEAR_LEAVES: int

def cuda_exact(
    leaves: Sequence[int],
    uploaded: int,
    dtype: Dtype,
    count: int,
    divisor: int,
    out: int,
    stream: int,
) -> None: ...
def reduce_exact(
    leaves: Sequence[DLPack], divisor: int, out: DLPack, gram: DLPack | None = None
) -> None:
    """
    The sum of arrays in host memory (see presum/reduce.h). gram: leaves x leaves doubles.
    """

class AuditRecord:
    """What an audit found, as it is recorded."""

    @property
    def elements(self) -> int: ...
    @property
    def differing(self) -> int: ...
    @property
    def wrong(self) -> int: ...
    @property
    def relative_l2(self) -> float: ...
    @property
    def error_max(self) -> float: ...

def audit_nearer(leaves: Sequence[DLPack], result: DLPack) -> tuple[int, int]:
    """
    How many elements of a result are nearer to the sum, and how many to the mean.
    """

class Auditor:
    """Compares a reduction's result with what went in (src/audit/audit.h)."""

    def __init__(self, workers: int, dtype: Dtype, divisor: int, elements: int) -> None: ...
    def add(self, leaves: Sequence[DLPack], result: DLPack) -> None: ...
    def result(self) -> dict[str, Any]: ...

class Survey:
    """Sums in many orders and formats (see src/audit/survey.h)."""

    def __init__(self, workers: int, dtype: Dtype, elements: int, seed: int) -> None: ...
    def add(self, leaves: Sequence[DLPack]) -> None: ...
    def result(self) -> dict[str, Any]: ...

class Tap:
    """
    Stands in a function's place, without a frame of its own. before(*args, **kwargs) may return other arguments as (args, kwargs); after(result, *args, **kwargs) is called where it returned, always() also where it raised.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
        always: Callable[[], Any] | None = None,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, type: type | None = None) -> Any: ...
    def __reduce__(self) -> str: ...
    @property
    def active(self) -> bool: ...
    @active.setter
    def active(self, arg: bool, /) -> None: ...

class PassFlags:
    """
    Where a recorder is in a backward pass: what hooks of parameters look at.
    """

    def __init__(self) -> None: ...
    @property
    def off(self) -> bool: ...
    @off.setter
    def off(self, arg: bool, /) -> None: ...
    @property
    def in_backward(self) -> bool: ...
    @in_backward.setter
    def in_backward(self, arg: bool, /) -> None: ...
    @property
    def reads_sums(self) -> bool:
        """What ``.grad`` holds is to be read."""

    @reads_sums.setter
    def reads_sums(self, arg: bool, /) -> None: ...
    @property
    def reads_arrivals(self) -> bool:
        """What is added to it."""

    @reads_arrivals.setter
    def reads_arrivals(self, arg: bool, /) -> None: ...
    @property
    def arrivals(self) -> int:
        """Gradients that came so far."""

    @arrivals.setter
    def arrivals(self, arg: int, /) -> None: ...
    def leave(self) -> None:
        """Where a recorder calls what is the program's own..."""

    def enter(self) -> None:
        """...and back."""

    def __enter__(self) -> None:
        """Around whatever a recorder does for torch: it takes the time."""

    def __exit__(self, *error: object) -> None: ...
    @property
    def spent(self) -> float:
        """
        Seconds within ``with``, and in hooks of parameters, of all threads together: those in which one at least is there.
        """

class ParameterHook:
    """
    What torch calls once a parameter has its gradient: without a frame of Python. It never raises, and copies and pickles as one of Python's own that does nothing. `observer`: reads what lies in host memory; None where the listener does.
    """

    def __call__(self, /, *args: object, **kwargs: object) -> None:
        """Call self as a function."""

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, listener: Any, parameter: int, observer: Observer | None) -> None: ...
    def __reduce__(self) -> tuple[object, ...]: ...

    __torch_unserializable__: bool = True

def read_plain(observer: Observer, parameter: int, gradient: object, reduced: bool) -> bool:
    """
    Reads a gradient that is contiguous in host memory, of a class and dtype of torch's own. Whether it was one.
    """

def hash_plain(observer: Observer, kind: StateKind, index: int, state: object) -> bool:
    """The hash of a tensor that belongs to parameter, or buffer, `index`."""

def plain_number(tensor: object) -> float | None:
    """
    The element of a tensor in host memory, of torch's own class, float32 or float64. None for another one.
    """

def count_plain_targets(labels: object, ignored: int) -> int | None:
    """
    How many labels take part in the loss: those that are not `ignored`. None unless they are int64, contiguous in host memory, and of torch's own class.
    """

class Watchdog:
    """
    Tells where this process stands, by a thread of its own where the interpreter does not answer (see src/watch/watchdog.h).
    """

    def __init__(
        self,
        *,
        rank: int,
        host: str,
        period: float,
        stall_seconds: float,
        thread: int,
        quiet: bool = False,
    ) -> None: ...
    def beat(self, collective: str, site: str, stack: str, recorder: str) -> bytes: ...
    @property
    def still(self) -> float: ...
    def stop(self) -> None: ...
    def reaches(
        self, *, hosts: Sequence[str], port: int, queue: str, run: int, segment: int
    ) -> None: ...
