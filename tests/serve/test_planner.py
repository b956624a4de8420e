#!/usr/bin/env python3
"""The planner and the workbook of `hearth serve`: the same answers as `hearth plan` and `hearth calc`, and words where there is
none.

usage: test_planner.py HEARTH
"""
import itertools
import json
import pathlib
import random
import re
import shlex
import threading
import urllib.parse

from server import ServeCase, hearth_json, main

PAGES = pathlib.Path(__file__).resolve().parent.parent.parent / "src" / "serve" / "pages"


def page_data(name):
    """The JSON of a script that holds nothing else."""
    return json.loads(re.search(r"= ([\[{].*[\]}]);", (PAGES / name).read_text(), re.S)[1])


def draw(generator, presets, devices):
    """Options of a plan as a dictionary; not all of them can be."""
    pick = generator.choice
    plan = {"model": pick(presets), "gpu": pick(devices), "gpus": pick((1, 2, 8, 8, 64, 256)), "seq": pick((512, 2048, 4096)),
            "micro-batch": pick((1, 2, 4)), "accum": pick((1, 4, 16)), "precision": pick(("bf16", "bf16", "bf16-pure", "fp32", "fp8")),
            "recompute": pick(("none", "selective", "full")), "zero": pick((0, 1, 2, 3)), "tokens": pick(("20x", "10B", "1.5T"))}
    for axis in ("tp", "pp", "cp", "ep"):
        if generator.random() < 0.3:
            plan[axis] = 2
    for option, value in (("hours", 30.5), ("price", 0), ("kwh", 0.31), ("mfu", 0.4), ("vocab", 50000), ("model.layers", 24),
                          ("model.vocab", 65536), ("gpus-per-node", 4), ("memory-limit", 0.9), ("eager", "true")):
        if generator.random() < 0.2:
            plan[option] = value
    return plan


def arguments_of(plan):
    words = ["plan", plan["model"], "--json"]
    for option, value in plan.items():
        if option.startswith("model."):
            words += ["--set", f"{option}={value}"]
        elif option == "eager":
            words += ["--eager"]
        elif option != "model":
            words += [f"--{option}", str(value)]
    return words


class Answers(ServeCase):
    def test_ten_drawn_plans_are_those_of_hearth_plan(self):
        self.serve()
        lists = self.json("/api/plan/lists")
        presets, devices = ([row["name"] for row in lists[key]] for key in ("presets", "gpus"))
        generator, planned, refused, tight = random.Random(19), 0, 0, 0
        while planned < 10:
            plan = draw(generator, presets, devices)
            code, expected, complaint = hearth_json(*arguments_of(plan))
            reply = self.ask("/api/plan?" + urllib.parse.urlencode(plan))
            answer = json.loads(reply.body)
            if code == 2:
                refused += 1
                self.assertEqual(reply.status, 400, (plan, reply.body))
                self.assertIn(answer["error"], complaint)
                continue
            self.assertEqual(reply.status, 200, (plan, reply.body))
            self.assertEqual(answer["plan"], expected, plan)
            self.assertEqual(hearth_json(*shlex.split(answer["command"])[1:], "--json")[1], expected, answer["command"])
            self.assertEqual(code, 0 if answer["plan"]["fits"] else 1)
            tight += code
            planned += 1
        self.assertGreater(refused, 0)  # the draw is wide enough to meet both
        self.assertGreater(tight, 0)

    def test_a_plan_of_bare_numbers_is_that_of_hearth_plan(self):
        self.serve()
        for plan in ({"params": "8B", "tokens": "15T", "gpus": 64, "gpu": "h100-sxm"},
                     {"params": "30B", "active-params": "3B", "gpus": 8, "gpu": "h200-sxm", "hours": 100, "mfu": 0.3},
                     {"params": "1e9", "peak-tflops": 438.9, "gpus": 4, "precision": "fp8", "price": 1.5}):
            words = [word for option, value in plan.items() for word in (f"--{option}", str(value))]
            answer = self.json("/api/plan?model=&" + urllib.parse.urlencode(plan))
            self.assertEqual(answer["plan"], hearth_json("plan", *words, "--json")[1])
            self.assertEqual(shlex.split(answer["command"]), ["hearth", "plan", *words])

    def test_what_cannot_be_planned_is_said_in_words(self):
        self.serve()
        for query, said in (("", "no model is given"), ("model=", "no model is given"), ("model=gpt-5", "no model preset is called"),
                            ("model=../../etc/passwd", "no model preset is called"),
                            ("model=llama-3-8b&gpuss=8", "no parameter \"gpuss\""), ("model=llama-3-8b&gpuss=", "no parameter \"gpuss\""),
                            ("model=llama-3-8b&hardware=/etc/passwd", "no parameter \"hardware\""),
                            ("model=llama-3-8b&target-hours=1e6", "no parameter \"target-hours\""),
                            ("model=llama-3-8b&data.train=/etc/passwd", "no parameter"), ("model=llama-3-8b&model.init=/etc", "no parameter"),
                            ("model=llama-3-8b&params=8B", "--params 8B, and llama-3-8b"), ("params=8B&tp=2", "--tp needs a model"),
                            ("params=many", "--params takes a number"), ("active-params=3B", "no model is given"),
                            ("model=llama-3-8b&gpus=8&gpus=9", "gpus is given twice"), ("model=llama-3-8b&gpus=many", "takes a whole number"),
                            ("model=llama-3-8b&gpus=0", "--gpus must be between 1 and"), ("model=llama-3-8b&gpus=9&tp=2", "do not divide"),
                            ("model=llama-3-8b&zero=4", "must be at most 3"), ("model=llama-3-8b&gpu=abacus", "abacus"),
                            ("model=llama-3-8b&eager=maybe", "true or false"), ("model=llama-3-8b&price=nan", "--price must be between"),
                            ("model=llama-3-8b&model.layers=%27", "model.layers")):
            answer = self.json("/api/plan?" + query, status=400)
            self.assertIn(said, answer["error"], query)
        for query, said in (("", "no quantity"), ("quantity=x", "unknown quantity"), ("quantity=ring_steps&N=0", "must not be zero"),
                            ("quantity=ring_steps&N=8&N=9", "given twice"), ("quantity=ring_steps&value=14&N=8", "all of its inputs"),
                            ("quantity=train_hours&value=1&params=1", "are open")):
            self.assertIn(said, self.json("/api/calc?" + query, status=400)["error"], query)

    def test_a_quantity_and_its_solution_are_those_of_hearth_calc(self):
        self.serve()
        for words in (("ring_allreduce_ms", "M_GB=2", "N=8", "bw_GBps=50"), ("ring_allreduce_ms=70", "M_GB=2", "N=8"),
                      ("tp_col_shape", "d_in=8192", "d_out=8192", "tp=8"), ("train_hours=24", "params=8B", "tokens=160B", "peak_tflops=989", "mfu=0.4")):
            name, _, value = words[0].partition("=")
            query = {"quantity": name, **({"value": value} if value else {}), **dict(word.split("=", 1) for word in words[1:])}
            self.assertEqual(self.json("/api/calc?" + urllib.parse.urlencode(query)), hearth_json("calc", *words, "--json")[1])
        self.assertEqual(self.json("/api/calc/list"), hearth_json("calc", "--list", "--json")[1])

    def test_a_plan_too_large_for_any_machine_is_answered_soon(self):
        # Highly composite counts have the most ways to cut: without a bound this searches for minutes.
        self.serve()
        answer = self.json("/api/plan?model=qwen3-30b-a3b&gpu=h100-sxm&gpus=55440&seq=32768&micro-batch=32", timeout=60)
        self.assertFalse(answer["plan"]["fits"])
        self.assertIn("fitting", answer["plan"])

    def test_many_ask_at_once(self):
        self.serve()
        queries = ["/api/plan?model=llama-3-8b&gpus=%d&zero=3" % n for n in (8, 16, 64)] + ["/api/calc?quantity=ring_steps&value=14"]
        expected = [self.json(query) for query in queries]
        wrong = []

        def client(index):
            for _ in range(5):
                if self.json(queries[index % len(queries)]) != expected[index % len(queries)]:
                    wrong.append(index)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_every_quantity_has_examples_and_every_exercise_an_answer(self):
        self.serve()
        quantities = {row["quantity"]: row for row in self.json("/api/calc/list")}
        examples, exercises = page_data("workbook_examples.js"), page_data("workbook_exercises.js")
        self.assertEqual(set(examples), set(quantities))
        for name, sets in examples.items():
            for values in sets:
                self.json("/api/calc?" + urllib.parse.urlencode({"quantity": name, **values}))
        for exercise in exercises:
            if "question" not in exercise:
                self.assertIn(exercise["quantity"], examples)
                continue
            self.assertLessEqual(set(re.findall(r"\{(\w+)\}", exercise["question"])), set(exercise["draw"]))
            draws = list(itertools.product(*exercise["draw"].values()))
            for values in {draws[0], draws[-1], draws[len(draws) // 2]}:
                self.json("/api/calc?" + urllib.parse.urlencode({"quantity": exercise["quantity"], **dict(zip(exercise["draw"], values))}))


if __name__ == "__main__":
    main("test_planner")
