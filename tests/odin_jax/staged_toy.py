"""The toy pipeline with every optional hook: it looks at the photos, trains at half size first and looks at views."""

from __future__ import annotations

from copy import copy

import toy

HALF_UNTIL = 20  # steps at half size
LOOKED: list[tuple] = []  # (event, step, [(height, width, mean of the photo) of each view])
SURVEYS: list[int] = []  # photos seen by each survey
SIZES: set[tuple[int, int]] = set()  # of the views whose gradient was traced


class Staged(toy.Toy):
    name = "staged"
    mean = None

    def survey(self, photos):
        SURVEYS.append(len(photos))
        return {"mean": sum(float(photos[place].mean()) for place in range(len(photos))) / len(photos)}

    def with_survey(self, found):
        knowing = copy(self)
        knowing.mean = found["mean"]
        return knowing

    def scale(self, step):
        return 2 if step <= HALF_UNTIL else 1

    def events(self, step):
        return (*super().events(step), "resolution") if step == HALF_UNTIL else super().events(step)

    def loss_and_grad(self, state, views, step, pair_capacity):
        SIZES.update((view.camera.height, view.camera.width) for view in views)
        return super().loss_and_grad(state, views, step, pair_capacity)

    def event_views(self, event, step, state):
        return (1, 4) if event == "grow" else ()

    def apply_event(self, state, event, step, views=()):
        LOOKED.append((event, step, [(*view.photo.shape[:2], float(view.photo.mean())) for view in views]))
        return super().apply_event(state, event, step) if event == "grow" else state

    def told(self, state, step):
        return {"target": 50, "scale": self.scale(step + 1)}


def factory(config):
    return Staged()
