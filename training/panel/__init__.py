"""Fits a panel on labelled answers. `training.recipes.panel` makes a checkpoint of what is fitted here.

`labelled_panels` makes arrays of runs and outcomes, and `same_answers` chooses when two answers are the same.
`fitted_panel` fits P(right), and `played_panels` plays panels to choose when to stop. `fitted_asks` tunes the ways to
choose whom to ask, `played_asks` plays them, and `compared_asks` compares them on groups left out.
"""
