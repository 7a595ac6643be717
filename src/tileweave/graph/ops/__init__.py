"""Operators: one table of rows, monoids, and the functions that users call.

The functions of every module are attributes of this package.
"""

from tileweave.graph.ir.assemble import *
from tileweave.graph.ir.select import *
from tileweave.graph.ops.along import *
from tileweave.graph.ops.contract import *
from tileweave.graph.ops.elementwise import *
from tileweave.graph.ops.functions import *
from tileweave.graph.ops.generate import *
from tileweave.graph.ops.grouped.ragged import ragged_dot as ragged_dot
from tileweave.graph.ops.grouped.rows import rows as rows
from tileweave.graph.ops.indexing import *
from tileweave.graph.ops.reductions import *
from tileweave.graph.ops.windows import *
