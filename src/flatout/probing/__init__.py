"""Probing: one file per outside source of facts about the Machine; what fails is None."""
