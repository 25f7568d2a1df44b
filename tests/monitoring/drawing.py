"""Draws a dashboard as SVG, from its JSON and the results of its queries."""

from html import escape

from dashboards import PanelData, Series

CELL, ROW, MARGIN, HEADER = 50, 30, 8, 64
WIDTH = 24 * CELL
PALETTE = ["#3f8f4f", "#d29922", "#3b78c3", "#c4532d", "#7a5bb5", "#2a9d9d", "#b5477f", "#6b7280", "#8a6d3b", "#4b5d9b"]
COLORS = {"red": "#c9302c", "orange": "#c77700", "green": "#2e8540", "text": "#24292f"}
NOTE = "drawn from the dashboard's JSON and the results of its queries, not a screenshot of Grafana"
# Divisions of an axis, as multiples of a power of ten.
NICE = (1, 2, 2.5, 5, 10)
GRID = "#e3e6ea"
LEGEND_LINES = 3


def draw(dashboard: dict, values: dict[str, str], data: list[PanelData]) -> str:
    """Returns the picture of a dashboard with these values of its variables."""
    bottom = max(one.panel["gridPos"]["y"] + one.panel["gridPos"]["h"] for one in data)
    height = HEADER + bottom * ROW + MARGIN
    chosen = [f"{name} = {value}" for name, value in values.items() if not name.startswith("__") and value != ".*"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#24292f">',
        f"<title>{escape(dashboard['title'])}, {NOTE}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#f4f5f7"/>',
        text(MARGIN, 24, dashboard["title"], "font-size='18' font-weight='bold'"),
        text(WIDTH - MARGIN, 24, ", ".join(chosen), "text-anchor='end'"),
        text(MARGIN, 46, NOTE[0].upper() + NOTE[1:] + ".", "fill='#57606a'"),
    ]
    for one in data:
        parts.extend(draw_panel(one))
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(content)}</text>'


def draw_panel(one: PanelData) -> list[str]:
    area = one.panel["gridPos"]
    x, y = area["x"] * CELL, HEADER + area["y"] * ROW
    if one.panel["type"] == "row":
        return [text(x + MARGIN, y + 20, one.panel["title"], "font-size='14' font-weight='bold'")]
    width, height = area["w"] * CELL, area["h"] * ROW
    box = (
        f'<rect x="{x + 3}" y="{y + 3}" width="{width - 6}" height="{height - 6}" rx="3" fill="#fff" stroke="#d0d7de"/>'
    )
    title = text(x + 12, y + 20, one.panel["title"], "font-size='12' font-weight='bold'")
    draw_content = draw_stat if one.panel["type"] == "stat" else draw_graph
    return [box, title, *draw_content(one, x, y, width, height)]


def draw_stat(one: PanelData, x: float, y: float, width: float, height: float) -> list[str]:
    """The values, or the legends, of all series."""
    defaults = one.panel["fieldConfig"]["defaults"]
    is_name = one.panel["options"]["textMode"] == "name"
    shown, color = [], COLORS["text"]
    for series in one.series:
        value = series.points[-1][1]
        shown.append(series.legend if is_name else mapped(defaults, value))
        reached = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
        color = COLORS[reached[-1]["color"]]
    content = ", ".join(shown) or defaults["noValue"]
    size = max(13, min(30, round(1.6 * (width - 30) / max(len(content), 1))))
    style = f"text-anchor='middle' font-size='{size}' font-weight='bold' fill='{color}'"
    return [text(x + width / 2, y + height / 2 + 22, content, style)]


def mapped(defaults: dict, value: float) -> str:
    for mapping in defaults.get("mappings", []):
        if result := mapping["options"].get(f"{value:g}"):
            return result["text"]
    return format_value(value, defaults["unit"], defaults.get("decimals"))


def draw_graph(one: PanelData, x: float, y: float, width: float, height: float) -> list[str]:
    defaults = one.panel["fieldConfig"]["defaults"]
    unit, custom = defaults["unit"], defaults.get("custom", {})
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    series = sorted(one.series, key=lambda item: item.legend) if is_stacked else one.series
    if not series:
        return [text(x + width / 2, y + height / 2, "no data", "text-anchor='middle' fill='#57606a'")]
    legends, legend_height = draw_legend(series, x + 14, y + height - 13, width - 24)
    left, right = x + (74 if unit == "Bps" else 62), x + width - 14
    top, bottom = y + 34, y + height - 46 - legend_height
    lines = stacked(series) if is_stacked else [(item.points, None) for item in series]
    largest = max(value for points, _ in lines for _, value in points)
    step, maximum = axis(largest, defaults.get("max"), unit)
    begin, end = one.begin, one.end

    def place(at: float, value: float) -> tuple[float, float]:
        return (
            left + (right - left) * (at - begin) / (end - begin),
            bottom - (bottom - top) * min(value, maximum) / maximum,
        )

    parts = []
    for number in range(round(maximum / step) + 1):
        _, at = place(begin, number * step)
        parts.append(f'<path d="M{left:g} {at:.1f}H{right:g}" stroke="{GRID}"/>')
        parts.append(
            text(left - 5, round(at + 4, 1), format_value(number * step, unit), "text-anchor='end' fill='#57606a'")
        )
    for share in (0, 0.5, 1):
        anchor = {0: "start", 0.5: "middle", 1: "end"}[share]
        label = f"{(end - begin) * (share - 1):.0f} s" if share < 1 else "now"
        style = f"text-anchor='{anchor}' fill='#57606a'"
        parts.append(text(left + (right - left) * share, bottom + 14, label, style))
    # The topmost area of a stack is drawn first, so that the others remain visible.
    for number, (points, base) in reversed(list(enumerate(lines))):
        color = PALETTE[number % len(PALETTE)]
        path = [place(at, value) for at, value in points]
        if is_stacked:
            floor = [place(at, value) for at, value in reversed(base)]
            parts.append(f'<path d="{polyline(path + floor)}Z" fill="{color}" fill-opacity=".45"/>')
        parts.append(f'<path d="{polyline(path)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return parts + legends


def draw_legend(series: list[Series], left: float, bottom: float, width: float) -> tuple[list[str], float]:
    """Returns the legend, which ends at `bottom`, and its height without the first line."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    at = 0.0
    for number, item in enumerate(series):
        needed = 34 + 7 * len(item.legend)
        if at + needed > width and lines[-1]:
            lines.append([])
            at = 0.0
        lines[-1].append((at, item.legend, PALETTE[number % len(PALETTE)]))
        at += needed
    parts = []
    if hidden := sum(len(line) for line in lines[LEGEND_LINES - 1 :]) if len(lines) > LEGEND_LINES else 0:
        lines = lines[: LEGEND_LINES - 1]
        parts.append(text(left, bottom, f"and {hidden} more", "fill='#57606a'"))
    shown = len(lines) + bool(hidden)
    for number, line in enumerate(lines):
        y = bottom - 15 * (shown - 1 - number)
        for at, name, color in line:
            parts.append(f'<path d="M{left + at:g} {y - 4:g}h12" stroke="{color}" stroke-width="3"/>')
            parts.append(text(round(left + at + 16, 1), y, name))
    return parts, 15 * (shown - 1)


def stacked(series: list[Series]) -> list[tuple[list, list]]:
    """Returns the upper and lower line of each series. A series without a value at a time counts as 0."""
    times = sorted({at for item in series for at, _ in item.points})
    below = dict.fromkeys(times, 0.0)
    lines = []
    for item in series:
        values = dict(item.points)
        above = {at: below[at] + values.get(at, 0.0) for at in times}
        lines.append((list(above.items()), list(below.items())))
        below = above
    return lines


def polyline(points: list[tuple[float, float]]) -> str:
    """Leaves out points on horizontal lines."""
    kept = [
        point
        for number, point in enumerate(points)
        if number in (0, len(points) - 1)
        or not round(points[number - 1][1], 1) == round(point[1], 1) == round(points[number + 1][1], 1)
    ]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in kept)


def axis(largest: float, limit: float | None, unit: str) -> tuple[float, float]:
    """Returns the distance of the grid lines, and the end of the axis."""
    if limit is not None:
        return limit / 4, limit
    if largest <= 0:
        return 1, 1
    wanted = largest / 4
    if unit == "none":
        # Counts have no fractions.
        wanted = max(wanted, 1)
    power = 1.0
    base = 1024.0 if unit in ("bytes", "Bps") else 10.0
    while power * base <= wanted:
        power *= base
    while power > wanted and base == 10:
        power /= 10
    factors = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if base == 1024 else NICE
    step = next(power * factor for factor in factors if power * factor >= wanted)
    return step, step * max(1, -(-largest // step))


def format_value(value: float, unit: str, decimals: int | None = None) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("bytes", "Bps"):
        number, prefix = scaled(value, 1024, ["", "Ki", "Mi", "Gi", "Ti"])
        return f"{number:.4g} {prefix}B" + ("/s" if unit == "Bps" else "")
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    suffix = {"d": " d", "reqps": "/s"}.get(unit, "")
    number, prefix = scaled(value, 1000, ["", " k", " M", " G"])
    shown = f"{number:.{decimals}f}" if decimals is not None else f"{number:.3g}"
    return shown + prefix + suffix


def scaled(value: float, base: int, prefixes: list[str]) -> tuple[float, str]:
    for prefix in prefixes[:-1]:
        if abs(value) < base:
            return value, prefix
        value /= base
    return value, prefixes[-1]
