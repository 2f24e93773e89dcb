import pytest, sys
sys.path.insert(0,'/work/main/tests')
from registry_metrics import METRICS
from pullback.testing import check_metric
@pytest.mark.parametrize("name", METRICS)
def test_metric(name):
    c=METRICS[name]
    check_metric(c.metric, c.make_z(), c.make_targets())
