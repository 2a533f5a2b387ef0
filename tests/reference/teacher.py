"""A mean teacher's weights by name: an average of the student's, plain at first, and everything else taken over."""


class TeacherTwin:
    def __init__(self, values, decay):
        self.values, self.decay, self.steps = dict(values), decay, 0

    def update(self, student, trained):
        self.steps += 1
        momentum = min(1 - 1 / self.steps, self.decay)
        for name, value in student.items():
            old = self.values[name]
            self.values[name] = momentum * old + (1 - momentum) * value if name in trained else value
