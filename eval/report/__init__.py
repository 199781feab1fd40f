"""One self-contained HTML file from a comparison."""

from metaprobe.records.extras import require

for _module in ("jinja2", "matplotlib"):
    require(_module, "report")
