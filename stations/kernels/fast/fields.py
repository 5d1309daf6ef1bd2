"""Records of int64 that Python fills and compiled code reads: one numbering for both sides. Imports nothing.

Each record is an int64 array whose address is passed on; addresses are in bytes, strides in bytes between rows.
"""

from __future__ import annotations

# PART: one matrix of a product. Parts of a list lie side by side in the output, from COLUMN (bytes) on.
PART_KERNEL, PART_WEIGHTS, PART_GROUPS, PART_COLUMN, PART_FORM = range(5)  # form: of the activations its kernel reads
PART_FIELDS = 5

# LAYER: addresses of one layer's weights, 0 for those of a role that is not here. Parts as lists of PART records.
(
    LAYER_NORM1, LAYER_NORM2, LAYER_QKV, LAYER_QKV_PARTS, LAYER_OUTPUT, LAYER_GATE_UP, LAYER_DOWN,
) = range(7)  # fmt: skip
LAYER_FIELDS = 8

# SPAN: consecutive rows of one sequence in the batch
SPAN_TABLE, SPAN_FIRST, SPAN_ROWS = range(3)  # KV table address, position of the first row, rows
SPAN_FIELDS = 3

# WORK: geometry and areas of a backend
(
    WORK_HIDDEN, WORK_HEADS, WORK_KV_HEADS, WORK_HEAD_DIM, WORK_FFN, WORK_EPS, WORK_SCALE, WORK_ROPE_DIM,
    WORK_ROPE_TABLE, WORK_POOL, WORK_X, WORK_H, WORK_QKV, WORK_HEADS_OUT, WORK_U, WORK_TILES, WORK_SCRATCH,
    WORK_X_STRIDE, WORK_QKV_STRIDE, WORK_K_COLUMN, WORK_V_COLUMN, WORK_HEADS_STRIDE, WORK_U_STRIDE, WORK_STAGE_BYTES,
    WORK_ATTEND, WORK_INT8_TILES,
) = range(26)  # fmt: skip
WORK_FIELDS = 32  # WORK_EPS and WORK_SCALE hold f32 bits

# CALL: one call of a role
(
    CALL_OP, CALL_ROWS, CALL_X, CALL_X2, CALL_OUT, CALL_OUT2, CALL_OUT_STRIDE, CALL_LAYERS, CALL_NUM_LAYERS,
    CALL_SPANS, CALL_NUM_SPANS, CALL_PARTS, CALL_NORM, CALL_FIRST_SEGMENT, CALL_END_SEGMENT, CALL_WIDTH,
) = range(16)  # fmt: skip
CALL_FIELDS = 16
OP_ATTN, OP_GATE_UP, OP_DOWN, OP_FFN, OP_BLOCK, OP_HEAD, OP_NORM, OP_HELP, OP_START, OP_QUIT = range(10)

# what a call on a sealed group does (`overlay_unit.py`)
OVERLAY_FILL, OVERLAY_STEP, OVERLAY_REPLAY = range(3)

# JOB: work cut into chunks. Output: rows of `width` bytes; a chunk is OUTER_ROWS rows × INNER_BYTES of them.
(
    JOB_KIND, JOB_COUNT, JOB_ROWS, JOB_OUT, JOB_OUT_STRIDE, JOB_WIDTH, JOB_OUTER_ROWS, JOB_INNER, JOB_INNER_BYTES,
) = range(9)  # fmt: skip
JOB_ARGS = 9  # where the kind's own fields begin
JOB_FIELDS = 24
JOB_PREPARE, JOB_PRODUCT, JOB_GATE_UP, JOB_ATTEND = range(4)
(
    PREPARE_SOURCE, PREPARE_STRIDE, PREPARE_ROWS, PREPARE_WIDTH, PREPARE_BLOCKS, PREPARE_NORM, PREPARE_EPS,
    PREPARE_FORM,
) = range(JOB_ARGS, 17)  # fmt: skip
(
    PRODUCT_PARTS, PRODUCT_NUM_PARTS, PRODUCT_BLOCKS, PRODUCT_TILES, PRODUCT_TILE_BLOCKS, PRODUCT_SEGMENTS,
    PRODUCT_FIRST_SEGMENT, PRODUCT_END_SEGMENT, PRODUCT_BASE, PRODUCT_BASE_STRIDE, PRODUCT_INT8_TILES,
) = range(JOB_ARGS, 20)  # fmt: skip
(
    ATTEND_WORK, ATTEND_Q, ATTEND_Q_STRIDE, ATTEND_SPANS, ATTEND_NUM_SPANS,
) = range(JOB_ARGS, 14)  # fmt: skip

# POOL: what the threads of a backend share; words that threads write lie on cache lines of their own
POOL_CLAIM = 0  # sequence number << 28 | chunks << 14 | next chunk
POOL_ACTIVE = 8  # 1 while helpers shall look for work
POOL_QUIT = 9  # 1: helpers return
POOL_HELPERS, POOL_SEQUENCE, POOL_FLAGS, POOL_STOLEN = 16, 17, 18, 19
POOL_JOB = 24  # a JOB record
POOL_MUTEX, POOL_CONDITION = 48, 56  # of the C library, at most 64 bytes each: where helpers sleep between calls
POOL_SLOTS = 64  # a cache line for each helper: what it holds, its stage, its scratch, chunks it has computed
POOL_LINE = 8
MAX_HELPERS = 7
POOL_FIELDS = POOL_SLOTS + POOL_LINE * MAX_HELPERS
MAX_CHUNKS = (1 << 14) - 1
