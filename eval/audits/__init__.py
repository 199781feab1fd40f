"""Are the numbers what they seem? Checks of the data, of what was learned, and of where it holds.

report = run_audits(AuditInputs(name="probe", table=table, score=held_out, splits=folds))
report.failed, report.audits, report.skipped, report.controls.strongest
"""
