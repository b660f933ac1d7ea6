"""The optimizers: their base class, one file for the settings of each, and the steps that torch does not have in this form."""
