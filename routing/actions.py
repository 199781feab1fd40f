"""What can be decided at the points where a pipeline asks, by name, and from what evaluation on an answer is good."""

EXECUTE, ASK, COLLABORATE = "execute", "ask", "collaborate"
"""MetaCogAgent: answer alone or ask the others; then delegate (the action is the agent's name) or all vote."""
SYNTHESISE, MONITOR, MONITOR_CONTROL = "synthesise", "monitor", "monitor+control"
"""MetaCrit: which critics are heard before the answer is synthesised."""
GENERATE = "generate"
"""Monitor-Generate-Verify, point `budget`: a setting rather than a choice; the decision's scores hold it."""
STOP, AGAIN = "stop", "again"
KEEP, JUDGE = "keep", "judge"
"""The essay debate, point `review`, beside `again`: what becomes of an argument."""
KEEPS = frozenset({EXECUTE, KEEP, "accept"})
"""Actions that take the answer of the agent whose turn it is as it stands; `accept` is one of `routing.ask_again`."""

GOOD = 0.85
"""The mean evaluation score from which Monitor-Generate-Verify stops, as its paper has it."""
