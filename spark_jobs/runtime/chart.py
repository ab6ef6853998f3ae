"""The chart of a report: rates, sizes and lag over time, as a picture. Needs no display."""

import io
import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from msgtx.spark_jobs.report import SECOND, Bucket, GroupLag, RatesReport, TopicRates

# Colours that remain different for the colour-blind (Okabe and Ito), the strongest first; grey is the rest.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#B5A642")
REST: Final = "#B8BEC6"
# Tol's muted ones, so that no group looks like a topic.
GROUP_COLOURS: Final = ("#332288", "#CC6677", "#117733", "#AA4499", "#88CCEE", "#DDCC77", "#44AA99", "#882255")
INK: Final = "#1F2933"
MUTED: Final = "#6B7785"
RULE: Final = "#E4E8EC"
INCHES: Final = (13.0, 9.2)
DOTS_PER_INCH: Final = 150
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
LONGEST_NAME: Final = 26  # in a legend; a longer one loses its middle
IN_A_ROW: Final = 4  # names of topics above the panels
GROUPS: Final = 6  # that have a line of their own
STYLE: Final[dict[Any, Any]] = {  # its keys have a type of their own, of hundreds of words
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a group's name is a dollar
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": RULE,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
}
Numbers = NDArray[np.float64]


def draw(report: RatesReport) -> bytes:
    """Draw a report. Returns a PNG."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script; a box stands for it
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        _fill(figure, report)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": "msgtx"})
    return target.getvalue()


def scaled(size: float) -> tuple[float, str]:
    """Return the divisor for bytes of this size, and the unit's name."""
    index = 0
    while size >= 1024 and index < len(UNITS) - 1:
        size, index = size / 1024, index + 1
    return 1024.0**index, UNITS[index]


def told_bytes(size: float) -> str:
    """Return bytes for people: three digits and a unit."""
    by, unit = scaled(size)
    return f"{size / by:.0f} {unit}" if by == 1 or size / by >= 100 else f"{size / by:.3g} {unit}"


def told_count(count: float) -> str:
    """Return a count for people: 12,345 and 12.3 M."""
    return f"{count:,.0f}" if count < 100_000 else EngFormatter(places=1)(count).replace(".0 ", " ")


def told_time(at: int) -> str:
    """Return a time for people, in UTC."""
    return f"{datetime.fromtimestamp(at / SECOND, UTC):%Y-%m-%d %H:%M:%S}"


def told_width(width_ms: int) -> str:
    """Return a span of time for people: in the largest unit that it is a multiple of."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if width_ms % unit == 0:
            return f"{width_ms // unit} {name}"
    return f"{width_ms} ms"


# ── the page ──


class Layer(NamedTuple):
    """A colour's series: a topic, or all others."""

    name: str
    colour: str
    topics: Sequence[TopicRates]


def _fill(figure: Figure, report: RatesReport) -> None:
    layers = _layers(report.topics)
    edges = _edges(report)
    times = np.asarray([date2num(datetime.fromtimestamp(at / SECOND, UTC)) for at in edges])
    colours = [layer.colour for layer in layers]
    counts = [_series((each.buckets for each in layer.topics), edges, "records") for layer in layers]
    sizes = [_series((each.buckets for each in layer.topics), edges, "bytes") for layer in layers]
    seconds = report.bucket_ms / SECOND
    _header(figure, report, layers)
    grid = figure.add_gridspec(2, 2, left=0.065, right=0.975, top=0.785, bottom=0.075, hspace=0.42, wspace=0.16)
    rates, byte_rates, lags, size = [figure.add_subplot(grid[row, column]) for row in (0, 1) for column in (0, 1)]
    _title(rates, "Records per second", "by their timestamps, stacked")
    _stack(rates, times, [each / seconds for each in counts], colours)
    _title(lags, "Unread records of groups", "up to each time; at the right end stands the lag of now")
    _lags(lags, times, edges, report.groups)
    unit = _stack_bytes(byte_rates, times, [each / seconds for each in sizes], colours)
    _title(byte_rates, "Bytes per second", f"{unit}/s as stored, stacked")
    unit = _stack_bytes(size, times, [np.cumsum(each) for each in sizes], colours)
    _title(size, "Size of topics", f"{unit} of what is there now, up to each time, stacked")
    for ax in (rates, byte_rates, lags, size):
        _time_axis(ax, times)


def _header(figure: Figure, report: RatesReport, layers: Sequence[Layer]) -> None:
    records, size = sum(each.records for each in report.topics), sum(each.bytes for each in report.topics)
    topics = f"{len(report.topics)} topic" + ("s" if len(report.topics) != 1 else "")
    head = f"{topics} · {told_count(records)} records · {told_bytes(size)}"
    figure.text(0.03, 0.962, head, fontsize=19, fontweight="bold", va="center")
    first = [each.first_at for each in report.topics if each.first_at is not None]
    last = [each.last_at for each in report.topics if each.last_at is not None]
    span = f"{told_time(min(first))} to {told_time(max(last) + report.bucket_ms)} UTC" if first else "no records"
    told = f"{span} · buckets of {told_width(report.bucket_ms)} · committed up to a cut of {told_time(report.made_at)} UTC"
    figure.text(0.03, 0.927, told, fontsize=10.5, color=MUTED, va="center")
    if layers:
        columns = min(len(layers), IN_A_ROW)
        by_column = [layer for column in range(columns) for layer in layers[column::columns]]  # so a row is read first
        handles = [Patch(facecolor=layer.colour) for layer in by_column]
        legend = figure.legend(
            handles, [""] * len(handles), loc="upper left", bbox_to_anchor=(0.024, 0.914), ncols=columns, handlelength=1.0,
            handleheight=1.0, columnspacing=1.6, handletextpad=0.5, labelspacing=0.35, fontsize=10.5,
        )  # fmt: skip
        for text, layer in zip(legend.get_texts(), by_column, strict=True):
            text.set_text(layer.name)  # given above, a name that begins with _ would be left out


def _stack(ax: Axes, times: Numbers, values: Sequence[Numbers], colours: Sequence[str]) -> None:
    """Draw layers on one another; the first, largest one lies below."""
    ground = np.zeros(max(len(times) - 1, 0))
    for layer, colour in zip(values, colours, strict=True) if len(times) else ():
        ax.stairs(ground + layer, times, baseline=ground, fill=True, facecolor=colour, edgecolor="white", linewidth=0.25)
        ground = ground + layer
    if not ground.any():
        _nothing(ax, "no records")
        return
    _count_axis(ax)


def _stack_bytes(ax: Axes, times: Numbers, values: Sequence[Numbers], colours: Sequence[str]) -> str:
    """Draw layers of bytes in a unit that suits them. Returns the unit."""
    by, unit = scaled(float(np.max(np.sum(values, axis=0))) if values and len(times) else 0.0)
    _stack(ax, times, [layer / by for layer in values], colours)
    ax.yaxis.set_major_formatter("{x:g}")
    return unit


def _lags(ax: Axes, times: Numbers, edges: Sequence[int], groups: Sequence[GroupLag]) -> None:
    behind = [each for each in groups if each.lag]
    drawn = [
        (np.cumsum(_series([group.buckets], edges, "records")), colour)
        for group, colour in zip(behind[:GROUPS], GROUP_COLOURS, strict=False)
    ]
    for unread, colour in drawn:
        ax.stairs(unread, times, fill=True, facecolor=colour, alpha=0.08)
    for unread, colour in drawn[::-1]:
        ax.stairs(unread, times, baseline=None, color=colour, linewidth=2.2)
    if not behind:
        _nothing(ax, "all groups are caught up" if groups else "no groups")
        return
    labels = [f"{_short(each.group)}  {told_count(each.lag)}" for each in behind[: len(drawn)]]
    handles = [Patch(facecolor=colour) for _, colour in drawn]
    more = [f"{len(behind) - len(drawn)} more behind"] if len(behind) > len(drawn) else []
    more += [f"{len(groups) - len(behind)} caught up"] if len(groups) > len(behind) else []
    handles += [Patch(facecolor="none") for _ in more]
    legend = ax.legend(
        handles, [""] * len(handles), loc="best", fontsize=9.5, handlelength=1.0, handleheight=1.0, frameon=True,
        facecolor="white", edgecolor="none", framealpha=0.85,
    )  # fmt: skip
    for text, label in zip(legend.get_texts(), [*labels, *more], strict=True):
        text.set_text(label)
    _count_axis(ax)


def _count_axis(ax: Axes) -> None:
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
    ax.yaxis.set_major_formatter(EngFormatter(sep="") if ax.get_ylim()[1] >= 1_000 else "{x:g}")


def _title(ax: Axes, title: str, subtitle: str) -> None:
    ax.text(0, 1.115, title, transform=ax.transAxes, fontsize=13, fontweight="bold", va="center")
    ax.text(0, 1.045, subtitle, transform=ax.transAxes, fontsize=9.5, color=MUTED, va="center")


def _nothing(ax: Axes, words: str) -> None:
    ax.text(0.5, 0.5, words, transform=ax.transAxes, fontsize=12, color=MUTED, ha="center", va="center")
    ax.set_yticks([])


def _time_axis(ax: Axes, times: Numbers) -> None:
    if not len(times):
        ax.set_xticks([])
        return
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    ax.set_xlim(float(times[0]), float(times[-1]))
    ax.set_xlabel("UTC", loc="left", fontsize=9)


# ── series ──


def _layers(topics: Sequence[TopicRates]) -> list[Layer]:
    """Return the topics that get a colour of their own, the largest first, and the rest as one."""
    by_size = sorted(topics, key=lambda each: (-each.bytes, each.topic))
    most = len(COLOURS) if len(by_size) <= len(COLOURS) else len(COLOURS) - 1
    shown = [Layer(_short(each.topic), colour, [each]) for each, colour in zip(by_size[:most], COLOURS, strict=False)]
    return [*shown, Layer(f"{len(by_size) - most} others", REST, by_size[most:])] if by_size[most:] else shown


def _edges(report: RatesReport) -> list[int]:
    """Return the begins of all buckets, empty ones too, and the end of the last one; nothing if there are no records."""
    sources = [each.buckets for each in report.topics] + [each.buckets for each in report.groups]
    times = [each.at for buckets in sources for each in buckets]
    return [*range(min(times), max(times) + 2 * report.bucket_ms, report.bucket_ms)] if times else []


def _series(sources: Iterable[Sequence[Bucket]], edges: Sequence[int], name: str) -> Numbers:
    """Return the sum of buckets as an array over all of the time."""
    values = np.zeros(max(len(edges) - 1, 0))
    for buckets in sources:
        for each in buckets:
            values[(each.at - edges[0]) // (edges[1] - edges[0])] += getattr(each, name)
    return values


def _short(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    half = (LONGEST_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
