"""What is trained on the shuffled stream: upper bounds, without drift."""

from gmed.learners.finetune import FineTune
from gmed.registry import register
from gmed.streams import iid

ONE_PASS = "SGD on the shuffled stream, one pass"
PASSES = "SGD on the shuffled stream, several passes"

register("iid-online", summary=ONE_PASS, order=iid)(FineTune)
register("iid-offline", summary=PASSES, order=iid, defaults={"passes": 5})(FineTune)
