"""The record of every artifact: contract of a stage, store, index, tables, and the run of one node. Below all other rooms."""
