"""Answers that keep to a form. In vLLM the imports are `from vllm import LLM, SamplingParams` and
`from vllm.sampling_params import StructuredOutputsParams`.

    python structured_outputs.py [MODEL]
"""
import enum
import sys

from pydantic import BaseModel

from celer import LLM, SamplingParams
from celer.sampling_params import StructuredOutputsParams


class Kind(str, enum.Enum):
    sedan = "sedan"
    suv = "SUV"
    truck = "Truck"


class Car(BaseModel):
    brand: str
    model: str
    kind: Kind


SQL = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
FORMS = {
    "choice": ("Classify this sentiment: celer is wonderful!", StructuredOutputsParams(choice=["Positive", "Negative"]), []),
    "regex": ("Write the address of Alan Turing, who works in Enigma:", StructuredOutputsParams(regex=r"[a-z]{2,8}@[a-z]{2,8}\.com\n"), ["\n"]),
    "json": ("Describe the most iconic car of the nineties as JSON:", StructuredOutputsParams(json=Car.model_json_schema()), []),
    "grammar": ("Write an SQL query that shows a column of a table:", StructuredOutputsParams(grammar=SQL), []),
}


def main():
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2", max_model_len=200)
    for name, (prompt, form, stop) in FORMS.items():
        params = SamplingParams(structured_outputs=form, stop=stop, max_tokens=60, temperature=0)
        print(f"{name}: {llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text}")


if __name__ == "__main__":
    main()
