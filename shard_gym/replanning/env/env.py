"""`EmbeddingReplanningEnv`: the Gymnasium environment of `EmbeddingReplanning-v0`."""

from __future__ import annotations

from shard_gym.envs.core.config import takes_fields_of
from shard_gym.envs.core.env import EpisodeEnv
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.replanning.env.episode_data import EpisodeData
from shard_gym.replanning.env.episodes import ReplanningConfig, ReplanningEpisodes
from shard_gym.replanning.env.history import History


class EmbeddingReplanningEnv(EpisodeEnv[DriftTask]):
    """
    ## Description

    A plan was made for the tables of yesterday. Today their lookups are others, rows were added and removed, devices
    left and came back. A new plan makes iterations shorter, but training pauses for it. The agent decides every hour
    whether to make one, and for which period of the past; what comes, it does not know.

    An episode is 14 days with 24 decisions each. Training does 100,000 iterations a day, a 24th of them in an hour of
    the episode: about 30 seconds of training where an iteration takes 7 ms, so that a pause of 600 seconds costs as
    much as 20 such hours. The lookups of the tables change every quarter of an hour, rows and the skew of their
    popularity every night, by random processes (`shard_gym.replanning.drift.levels`). Plans are greedy placements, the
    cheapest of several: of the tables, or in tasks whose tables may be split, of their parts, which are chosen once.
    The cost model estimates what an iteration costs.

    ## Action Space

    `Discrete(5)`, or `Discrete(9)` where tables grow:

    | Action | Meaning |
    |---|---|
    | 0 | keep the plan |
    | 1 | make a plan for the last hour |
    | 2 | for the last day |
    | 3 | for the last three days |
    | 4 | for the next 12 hours as they were yesterday |
    | 5 to 8 | the same, with room for 10 days of growth as in the last three days |

    A plan is made from the mean lookups of its period. It takes a pause (30, 120 or 600 seconds in the named suites)
    and the time to move tables over the links: max over devices and links of max(sent, received) bytes / bandwidth.

    A plan cannot go on if a device that it uses is not there, or if the tables on a device outgrew it. Then a plan must
    be made, which is called a repair and takes as long as any; action 0 makes it for the last hour.

    The actions 5 to 8 are illegal where tables do not grow, or where there is no room. An illegal action ends the
    episode (see Rewards). With `illegal="redirect"`, for learners without masks, the plan is made without room for
    growth instead, and the reward is less by 0.05. A value outside the space raises `InvalidActionError`.

    ## Observation Space

    A `Dict` of 1-D arrays, padded to `max_devices` (D). There are A actions and Z = A - 1 kinds of plans, one for each
    action but the first. W = 4 windows are the periods of the actions 1 to 4. All costs are in multiples of a
    reference: what the first plan costs on the three days before the episode.

    | Key | Shape | Dtype | Content |
    |---|---|---|---|
    | `device_costs` | (D * 4,) | float32 | the four phases of each device, with the mean lookups of the last hour |
    | `device_memory` | (D,) | float32 | share of the memory cap in use; above 1 if the tables outgrew the device |
    | `device_mask` | (D,) | int8 | 1 for a device of the task, 0 for padding |
    | `device_available` | (D,) | int8 | 1 for a device that is there now |
    | `device_used` | (D,) | int8 | 1 for a device that the plan in action is made for |
    | `replayed_costs` | (A * W,) | float32 | cost of the plan in action, then of each kind of plan, in each window |
    | `measured_costs` | (96,) | float32 | cost in each quarter of an hour of the last day, with 2% noise |
    | `lookup_changes` | (2 * W,) | float32 | change of the lookups since the plan was made; see below |
    | `made_for` | (Z,) | int8 | 1 for the kind of the plan in action; at the beginning, three days |
    | `since_plan` | (1,) | float32 | days since it was made |
    | `must_plan` | (1,) | int8 | 1 if it cannot go on |
    | `pause` | (1,) | float32 | seconds of a pause as a share of the seconds of a day at the reference cost |
    | `time` | (5,) | float32 | sine of the hour of the day and of the week, cosine of both; share of the episode |
    | `action_mask` | (A,) | int8 | 1 for a legal action |

    The bounds of the spaces; what has 10,000 as one has no other, and is cut off there:

    | Range | Keys |
    |---|---|
    | 0 to 10_000 | `device_costs`, `replayed_costs`, `measured_costs`, `pause`, `device_memory` |
    | -9 to 9 | `lookup_changes` |
    | 0 to 14 | `since_plan` |
    | -1 to 1 | `time` |

    `obs["replayed_costs"].reshape(A, W)[1:]` are the costs of the plans that can be made now, 0 where there is none.
    `lookup_changes` compares each window with the one that the plan was made for: W roots of weighted mean squares of
    the logarithms of the tables' ratios, then W logarithms of the ratio of all lookups.

    What is observed is of complete hours. After the last decision the observation is again of that hour, with the
    plan that is then in action.

    ## Starting State

    The plan for the last three days is in action. The task is drawn uniformly from the suite with the environment's
    random generator, or chosen with `reset(options={"task": key})`: an index, a name, or a
    `shard_gym.replanning.drift.tasks.DriftTask`. A task has its own seed: its drift and the noise are always the same.

    ## Rewards

    - `"time"` (default): minus the seconds of the hour (iterations, pause, migration), in multiples of the seconds of
      an hour at the reference cost. The return is near -336 where nothing drifts.
    - `"excess"`: that, and what the hour would have taken with a new plan for the last hour and no pause. It differs
      from `"time"` by what no action changes, so the best policy is the same, and the variance is less. It uses the
      future; no agent sees it.

    An episode that an illegal action ended is charged 1.1 times the most that the hours left can take: many times what
    a whole episode takes. Learners without masks do better with `illegal="redirect"`.

    ## Episode End

    `terminated` is True after the last decision, and after an illegal action. `truncated` is always False. A further
    step without a reset raises `gymnasium.error.ResetNeeded`.

    ## Information

    `reset` and `step` return the same keys, all of them numbers or arrays of a fixed shape:
    - `action_mask`: (A,) int8, the same mask as in the observation. `env.unwrapped.action_masks()` returns it as bool;
    - `task_index`: int64, number of the task in the suite; -1 for a task that has none;
    - `cost_ms`: float64, mean cost of an iteration in the last hour, without noise;
    - `placement`: (max_parts,) int64, the device of each table, or of each part; -1 in padding;
    - `failure`: int64, 0 for none, 1 for an illegal action. `env.unwrapped.failure()` explains it;
    - `redirected`: int64, illegal actions of the episode that were redirected;
    - `running_s`, `paused_s`, `moved_s`: float64, seconds of the whole episode in iterations, pauses and migrations; 0
      until it is over;
    - `plans`, `repairs`: int64, plans made in the episode, and those of them that were repairs; 0 until it is over.

    `info_text=True` adds texts, which not all libraries can store: `task` (name of the task) and `failure_message`
    (empty without a failure).

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingReplanning-v0", suite="drift-strong-600", split="train")
    ```

    - `suite="drift-medium-120"`: name of a suite (docs/environments/replanning.md lists them), path of a file that
      `shard_gym.save_suite` wrote, or a `DriftSuite`;
    - `split="train"`: or "test", with other tables and other drift;
    - `cost_model="analytical"`: a name, or a cost model that supports splits;
    - `reward="time"`: see Rewards;
    - `headroom=None`: whether there are the actions 5 to 8; by default, if a task of the suite grows;
    - `max_parts=None`, `max_devices=None`: padding; by default the size of the largest task in all splits of the suite;
    - `illegal="terminate"`: or "redirect", see Action Space;
    - `info_text=False`: see Information;
    - `render_mode=None`: "ansi" or, with the extra `viz` installed, "rgb_array".

    The first episode of a task takes a second or a few more, in which its plans are made; they are kept. `history()` of
    the environment has what was done so far, `data` all plans of the task and their costs, those of the future too.

    ## References

    The one shift that is measured: https://github.com/facebookresearch/dlrm_datasets, issue 10. For the growth of
    tables: H. S. Heaps, *Information Retrieval: Computational and Theoretical Aspects*, Academic Press, 1978.

    ## Version History

    * v0: initial version
    """

    _episodes: ReplanningEpisodes

    @takes_fields_of(ReplanningConfig)
    def __init__(self, config: ReplanningConfig) -> None:
        self._set_up(config)

    @property
    def data(self) -> EpisodeData:
        """All plans of this episode and their costs, of the future too: for solvers that look ahead."""
        self._require_episode("There are no plans yet")
        return self._episodes.data(0)

    def history(self) -> History:
        """What was done in this episode so far."""
        self._require_episode("Nothing was done yet")
        return self._episodes.history(0)
