"""Several answers to one question: which to keep, how sure it is right, when to stop asking, and whom to ask next.

`asking.Panel` is the class that callers use. `judgement` reads answers and gives the verdict, `planner` chooses when to
stop and whom to ask, `stored_panels` reads files and run stores.
"""
