"""The live page at `/`: one document without external parts that polls /status and shows it.

Whatever the cluster or a sink has named goes into the page as text nodes only, and the policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1a2230; --faint: #667085; --line: #e3e7ee;
  --accent: #2563eb; --good: #12805c; --warn: #a15c00; --bad: #c22f2f; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f141b; --card: #171e28; --text: #e6eaf0; --faint: #93a0b4;
  --line: #283240; --accent: #7aa8ff; --good: #4cc38a; --warn: #f0b35a; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 14px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 14px; margin-bottom: 18px; }
h1 { font-size: 20px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 13px; margin: 26px 0 8px; color: var(--faint); font-weight: 600; }
header .end { margin-left: auto; color: var(--faint); }
a { color: var(--accent); text-decoration: none; margin-left: 12px; }
a:hover { text-decoration: underline; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 12px; font-weight: 600;
  border: 1px solid currentColor; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); } .faint { color: var(--faint); }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.card, .table { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 22px; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.card span { color: var(--faint); font-size: 12px; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 7px 14px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th { font-size: 12px; font-weight: 600; color: var(--faint); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.troubled td { border-bottom: 0; padding-bottom: 0; }
td.error { white-space: normal; overflow-wrap: anywhere; font-size: 13px; }
.banner { border: 1px solid currentColor; border-radius: 10px; padding: 9px 14px; margin-bottom: 14px;
  overflow-wrap: anywhere; }
[hidden] { display: none; }
"""

_SCRIPT = """
"use strict";
const POLL_MS = 2000;
const tone = { running: "good", flowing: "good", starting: "warn", paused: "warn", held_back: "warn", retrying: "bad",
  awaiting_schema: "bad", draining: "warn", finished: "faint", stopped: "faint", failed: "bad" };
const at = (id) => document.getElementById(id);
const none = "\\u2013";
const count = (value) => value === null ? none : value.toLocaleString("en-US");
function age(seconds) {
  if (seconds === null) return none;
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.round(seconds % 60) + " s";
  return Math.floor(seconds / 3600) + " h " + Math.round(seconds % 3600 / 60) + " min";
}
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return bytes.toFixed(unit && bytes < 100 ? 1 : 0) + " " + units[unit];
}
function element(kind, text, ...classes) {
  const made = document.createElement(kind);
  made.textContent = text;
  made.classList.add(...classes.filter(Boolean));
  return made;
}
function pill(state) { return element("span", state.replace("_", " "), "pill", tone[state] || "faint"); }
function cell(content, ...classes) {
  const made = element("td", typeof content === "string" ? content : "", ...classes);
  if (typeof content !== "string") made.append(content);
  return made;
}
function card(label, value) {
  const made = element("div", "", "card");
  made.append(element("b", value), element("span", label));
  return made;
}
function banner(id, text) { at(id).textContent = text || ""; at(id).hidden = !text; }
function problem(item) {
  if (!item.last_error) return item.reason || "";
  const next = item.next_try_seconds == null ? "" : ", next in " + age(item.next_try_seconds);
  return item.last_error + (item.attempts ? " (attempt " + item.attempts + next + ")" : "");
}
function rows(item, columns, row) {
  const text = problem(item);
  if (!text) return [row];
  const below = document.createElement("tr");
  const only = cell(text, "error", item.last_error ? "bad" : "warn");
  only.colSpan = columns;
  below.append(only);
  row.classList.add("troubled");
  return [row, below];
}
function laneRows(lane) {
  const row = document.createElement("tr");
  // A lag that nobody measured for a minute is shown as what it is.
  const stale = lane.lag_age_seconds !== null && lane.lag_age_seconds > 60;
  const lag = count(lane.lag) + (stale ? " (" + age(lane.lag_age_seconds) + " old)" : "");
  row.append(cell(lane.topic), cell(String(lane.partition), "number"), cell(pill(lane.state)),
    cell(lag, "number", stale && "warn"), cell(count(lane.watermark), "number"), cell(count(lane.committed), "number"),
    cell(count(lane.end_offset), "number"), cell(age(lane.watermark_age_seconds), "number"),
    cell(size(lane.held_bytes), "number"), cell(String(lane.pipeline), "number"));
  return rows(lane, 10, row);
}
function sinkState(pipeline) {
  if (!pipeline.is_open) return "not open";
  return pipeline.breaker_opens_seconds === null ? "open" : "circuit breaker open";
}
function pipelineRows(pipeline) {
  const row = document.createElement("tr");
  row.append(cell(String(pipeline.pipeline)),
    cell(element("span", sinkState(pipeline), "pill", sinkState(pipeline) === "open" ? "good" : "bad")),
    cell(String(pipeline.lanes)));
  return rows(pipeline, 3, row);
}
function fill(id, rows, columns, empty) {
  if (!rows.length) {
    const row = document.createElement("tr");
    const only = cell(empty, "faint");
    only.colSpan = columns;
    row.append(only);
    rows = [row];
  }
  at(id).replaceChildren(...rows);
}
function intent(each) {
  const partition = each.partition === null ? "" : "[" + each.partition + "]";
  return (each.topic === null ? "everything" : each.topic + partition) + (each.is_held_back ? "" : " not");
}
function show(status) {
  const known = status.lanes.filter((lane) => lane.lag !== null);
  const lag = known.length ? known.reduce((sum, lane) => sum + lane.lag, 0) : null;
  const held = status.lanes.reduce((sum, lane) => sum + lane.held_bytes, 0);
  const ages = status.lanes.map((lane) => lane.watermark_age_seconds).filter((each) => each !== null);
  document.title = status.group_id + " \\u00b7 Sluiceway";
  at("group").textContent = status.group_id;
  at("state").replaceChildren(pill(status.state));
  at("ready").replaceChildren(element("span", status.is_ready ? "ready" : "not ready", "pill",
    status.is_ready ? "good" : "warn"));
  at("version").textContent = "Sluiceway " + status.version;
  banner("reason", status.is_ready ? "" : status.reason);
  banner("intents", status.intents.length ? "Paused by an operator: " + status.intents.map(intent).join(", ") : "");
  banner("dead", status.is_live ? "" : status.live_reason);
  banner("error", status.last_error);
  banner("missing", status.missing_topics.length ? "Missing topics: " + status.missing_topics.join(", ") : "");
  at("cards").replaceChildren(
    card("lag in records" + (known.length < status.lanes.length
      ? ", " + known.length + " of " + status.lanes.length + " lanes measured" : ""), count(lag)),
    card("lanes", count(status.lanes.length)),
    card("held, not durable yet", size(held)),
    card("oldest unfinished batch", ages.length ? age(Math.max(...ages)) : none),
    card("group protocol", status.group_protocol || none),
    card("epoch", count(status.epoch)));
  const lanes = [...status.lanes].sort((a, b) =>
    a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition);
  fill("lanes", lanes.flatMap(laneRows), 10, "No lanes are assigned.");
  fill("pipelines", status.pipelines.flatMap(pipelineRows), 3, "No pipelines.");
}
async function poll() {
  try {
    const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error("/status answers " + answer.status);
    show(await answer.json());
    banner("lost", "");
  } catch (error) {
    banner("lost", "No answer from the connector; what is shown is old. " + error.message);
  }
  setTimeout(poll, POLL_MS);
}
poll();
"""

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sluiceway</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
  <h1 id="group">Sluiceway</h1><span id="state"></span><span id="ready"></span>
  <span class="end"><span id="version"></span><a href="status">status</a><a href="metrics">metrics</a>
  <a href="config">config</a></span>
</header>
<div id="lost" class="banner bad" hidden></div>
<div id="dead" class="banner bad" hidden></div>
<div id="error" class="banner bad" hidden></div>
<div id="reason" class="banner warn" hidden></div>
<div id="intents" class="banner warn" hidden></div>
<div id="missing" class="banner warn" hidden></div>
<div id="cards" class="cards"></div>
<h2>Lanes</h2>
<div class="table"><table>
<thead><tr><th>topic</th><th class="number">partition</th><th>state</th><th class="number">lag</th>
<th class="number">watermark</th><th class="number">committed</th><th class="number">end offset</th>
<th class="number">oldest batch</th><th class="number">held</th><th class="number">pipeline</th></tr>
</thead>
<tbody id="lanes"></tbody>
</table></div>
<h2>Pipelines</h2>
<div class="table"><table>
<thead><tr><th>pipeline</th><th>sink</th><th>lanes</th></tr></thead>
<tbody id="pipelines"></tbody>
</table></div>
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""

_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
