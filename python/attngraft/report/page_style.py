"""The style of the HTML page: light and dark by the reader's own setting, colours by what a node is for."""

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --panel: #ffffff; --ink: #1d2126; --quiet: #5d6670; --line: #d9dde2;
  --product: #cfe3fb; --product-line: #3f7fc9; --softmax: #ffe0c2; --softmax-line: #d07a1e;
  --scale: #d9f1d6; --scale-line: #4d9a45; --mask: #f3d8ea; --mask-line: #b0508c;
  --plugin: #fff0a8; --plugin-line: #a88b00; --attention: #d8d4fb; --attention-line: #6a5bd0;
  --layout: #eceff2; --layout-line: #98a2ad; --tensor: #ffffff; --tensor-line: #7b8691;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --panel: #1c2025; --ink: #e6e9ec; --quiet: #98a2ad; --line: #333a42;
    --product: #1d3a5c; --product-line: #6aa5e8; --softmax: #573511; --softmax-line: #e8994a;
    --scale: #1f4320; --scale-line: #74bb6c; --mask: #4e2441; --mask-line: #d886b8;
    --plugin: #4b4110; --plugin-line: #d8bb3a; --attention: #332c63; --attention-line: #9e92f2;
    --layout: #282d33; --layout-line: #6b7580; --tensor: #1c2025; --tensor-line: #8b96a1;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 82rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h4 { font-size: .8rem; margin: 0 0 .5rem; color: var(--quiet); font-weight: 600; }
p { margin: .25rem 0; }
.quiet { color: var(--quiet); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0; padding: 0; list-style: none; }
.facts li { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
.facts b { display: block; font-size: 1.25rem; overflow-wrap: anywhere; }
.site { background: var(--panel); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.25rem 1.25rem;
  margin: 0 0 1.25rem; }
.pictures { display: grid; gap: 1.5rem 2rem; margin-top: 1rem; }
@media (min-width: 60rem) {
  .pictures { grid-template-columns: 1fr 1fr; } .pictures.single { grid-template-columns: 1fr; }
}
.legend { display: flex; flex-wrap: wrap; gap: .4rem 1.1rem; font-size: .85rem; color: var(--quiet); }
.legend span::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem;
  border-radius: .2rem; vertical-align: -.08rem; background: var(--fill); border: 1px solid var(--edge); }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; background: var(--panel); }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem; border: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; overflow-wrap: normal; }
td.name { font-family: ui-monospace, "DejaVu Sans Mono", Consolas, monospace; font-size: .82rem; min-width: 9rem; }
td.words { min-width: 10rem; }
footer { margin-top: 2rem; }
ul.reasons { margin: 0; padding: 0; list-style: none; }
.badge { display: inline-block; border-radius: .9rem; padding: 0 .6rem; border: 1px solid var(--edge);
  background: var(--fill); font-weight: 600; }
svg { display: block; max-width: 100%; height: auto; }
svg text { text-anchor: middle; fill: var(--ink); font-size: 12px; font-weight: 600; }
svg text.detail { font-weight: 400; font-size: 11px; fill: var(--quiet); }
svg .edge { fill: none; stroke: var(--quiet); stroke-width: 1.2; } svg .head { fill: var(--quiet); }
svg rect { fill: var(--fill); stroke: var(--edge); stroke-width: 1.2; }
.product, .native { --fill: var(--product); --edge: var(--product-line); }
.node.softmax, .legend .softmax { --fill: var(--softmax); --edge: var(--softmax-line); }
.scale { --fill: var(--scale); --edge: var(--scale-line); }
.mask { --fill: var(--mask); --edge: var(--mask-line); }
.plugin, .badge.softmax { --fill: var(--plugin); --edge: var(--plugin-line); }
.attention { --fill: var(--attention); --edge: var(--attention-line); }
.layout, .keep { --fill: var(--layout); --edge: var(--layout-line); }
.tensor, .context { --fill: var(--tensor); --edge: var(--tensor-line); }
.node.context rect { stroke-width: 2; }
"""
