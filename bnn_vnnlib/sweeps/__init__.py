"""Many boxes, radii and uncertainty of many inputs: jobs that run for long, in chunks, and go on after a kill.

sweep         bounds of every box of a table, on one or many networks
radii         the largest certified-robust and the smallest certified-unrobust radius of each input
uncertainty   bounds on the decision over balls of several radii, and what they say about uncertainty
"""

from bnn_vnnlib.question.options import Options
from bnn_vnnlib.sweeps.certainty import Reading as Reading
from bnn_vnnlib.sweeps.certainty import UncertaintyResult as UncertaintyResult
from bnn_vnnlib.sweeps.certainty import uncertainty as uncertainty
from bnn_vnnlib.sweeps.inputs import Inputs as Inputs
from bnn_vnnlib.sweeps.inputs import make_inputs as make_inputs
from bnn_vnnlib.sweeps.inputs import read_inputs as read_inputs
from bnn_vnnlib.sweeps.radius import Radii as Radii
from bnn_vnnlib.sweeps.radius import RadiusResult as RadiusResult
from bnn_vnnlib.sweeps.radius import radii as radii
from bnn_vnnlib.sweeps.source import Source as Source
from bnn_vnnlib.sweeps.sweeping import Pair as Pair
from bnn_vnnlib.sweeps.sweeping import SweepResult as SweepResult
from bnn_vnnlib.sweeps.sweeping import sweep as sweep
from bnn_vnnlib.sweeps.table import Table as Table
from bnn_vnnlib.sweeps.table import make_table as make_table
from bnn_vnnlib.sweeps.table import read_table as read_table

Bounding = Options
"""How every box is bounded: the options of `verify_batch`, under the name that they have in these functions."""
