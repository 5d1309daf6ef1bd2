"""The record of a prepared row, as `fields.py` has those of calls: int64 that Python fills and compiled code reads."""

from __future__ import annotations

# ROW: one role at one layer for one sequence. RUN is the entry of the unit `layers`; SPAN is 0 where nothing is cached.
# DATA, PLACE and HOP: bytes of a message before its values, before (settled, first), which every output copies, and
# before the number of crossings, to which CROSSING is added. TOOK_NS is the result: how long the kernel took, or -1 for
# an output that is not finite. LOOKUP is the entry of a lookup unit where the row is a token of an embedding of VOCAB
# rows, WEIGHTS and BLOCKS its other arguments; 0 for all other roles.
(
    ROW_RUN, ROW_WORK, ROW_CALL, ROW_SPAN, ROW_DATA, ROW_PLACE, ROW_HOP, ROW_CROSSING, ROW_TOOK_NS, ROW_NUM_OUTPUTS,
    ROW_LOOKUP, ROW_WEIGHTS, ROW_BLOCKS, ROW_VOCAB,
) = range(14)  # fmt: skip
ROW_OUTPUTS = 14  # for each output, in the order of the role's: address of its data, values
OUTPUT_ADDRESS, OUTPUT_WIDTH = range(2)
OUTPUT_FIELDS = 2
MAX_OUTPUTS = 2
ROW_FIELDS = ROW_OUTPUTS + OUTPUT_FIELDS * MAX_OUTPUTS
