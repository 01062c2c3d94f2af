"""The metrics of ``/metrics``, in Prometheus's text format. Names have their unit."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from molt.core import decisions as d
from molt.core import events as e

S_NS = 1_000_000_000
LATENCIES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one server; nothing is global, so a process may have several."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._ttft = Histogram(
            "molt_time_to_first_token_seconds",
            "Time from a request until its first token.",
            buckets=LATENCIES_S,
            registry=own,
        )
        self._itl = Histogram(
            "molt_inter_token_latency_seconds",
            "Time between two tokens of an answer.",
            buckets=LATENCIES_S,
            registry=own,
        )
        self._prompt_tokens = Counter("molt_prompt_tokens", "Tokens of prompts.", registry=own)
        self._tokens = Counter("molt_generation_tokens", "Tokens produced, by rung.", ["rung"], registry=own)
        self._requests = Counter(
            "molt_requests", "Answers that ended, by reason: stop, length, left.", ["reason"], registry=own
        )
        self._refused = Counter(
            "molt_requests_refused", "Requests refused because too many answers were under way.", registry=own
        )
        self._levers = Counter("molt_levers", "Decisions, by lever.", ["lever"], registry=own)
        self._switches = Counter(
            "molt_switches", "Switches between rungs.", ["source", "dest", "route"], registry=own
        )
        self._switch_s = Histogram(
            "molt_switch_seconds", "Duration of a switch.", ["route"], buckets=LATENCIES_S, registry=own
        )
        self._budget = Gauge("molt_budget_bytes", "Memory budget.", registry=own)
        self._usage = Gauge("molt_usage_bytes", "Memory in use.", registry=own)
        self._overshoot = Gauge("molt_overshoot_bytes", "Memory in use beyond the budget.", registry=own)
        self._overshoot_max = Gauge("molt_overshoot_bytes_max", "Largest overshoot so far.", registry=own)
        self._kills = Counter("molt_kills", "Kills of the engine's process.", registry=own)
        self._lost = Counter(
            "molt_log_records_lost",
            "Records that the log lacks, because it could not be written.",
            registry=own,
        )

    def watch(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Add gauges that are read when the metrics are."""
        for name, text, read in (
            ("molt_requests_running", "Answers that have a cache.", running),
            ("molt_requests_waiting", "Answers that have no cache yet.", waiting),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        """Everything, in the text format."""
        return generate_latest(self._registry)

    def asked(self, prompt_tokens: int) -> None:
        """A request was accepted."""
        self._prompt_tokens.inc(prompt_tokens)

    def refused(self) -> None:
        """A request was refused because too many answers were under way."""
        self._refused.inc()

    def token(self, rung: str, since_s: float, count: int, *, first: bool) -> None:
        """Tokens were produced, this long after the one before, or after the request."""
        self._tokens.labels(rung).inc(count)
        (self._ttft if first else self._itl).observe(since_s)

    def finished(self, reason: str) -> None:
        """An answer ended."""
        self._requests.labels(reason).inc()

    def lever(self, decision: d.AnyDecision) -> None:
        """The policy decided something."""
        self._levers.labels(type(decision).__name__.lower()).inc()

    def switched(self, event: e.Switched) -> None:
        """A tenant switched to another rung."""
        self._switches.labels(event.source, event.dest, event.route).inc()
        self._switch_s.labels(event.route).observe(event.duration_ns / S_NS)

    def killed(self) -> None:
        """The engine's process was killed."""
        self._kills.inc()

    def log_record_lost(self) -> None:
        """A record is not in the log, which was given up."""
        self._lost.inc()

    def memory(self, budget_bytes: int, usage_bytes: int, overshoot_bytes_max: int) -> None:
        """A new sample of the memory."""
        self._budget.set(budget_bytes)
        self._usage.set(usage_bytes)
        self._overshoot.set(max(0, usage_bytes - budget_bytes))
        self._overshoot_max.set(max(0, overshoot_bytes_max))
