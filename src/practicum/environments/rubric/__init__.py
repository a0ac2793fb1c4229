"""The rubric manager's world: workflows, workers, stakeholders, rubrics and the environment `rubric`."""
