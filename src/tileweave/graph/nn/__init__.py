"""Functions of neural networks, composed of operators."""

from tileweave.graph.nn.activations import *
from tileweave.graph.nn.attention import *
from tileweave.graph.nn.images import *
from tileweave.graph.nn.losses import *
from tileweave.graph.nn.norms import *
from tileweave.graph.nn.parts import *
from tileweave.graph.nn.quantized import *
from tileweave.graph.nn.recurrent import *
from tileweave.graph.ops.grouped.ragged import ragged_dot as ragged_dot
