/* Asks a model a question in C and prints the answer as it comes.
 *   chat model.gguf "Why is the sky blue?" */
#include <celer/celer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(void) {
  fprintf(stderr, "error: %s\n", celer_last_error());
  return 1;
}

/* The question through the model's chat template, or as it stands where there is none. Null: an error. */
static int32_t* make_prompt(const celer_model* model, int has_template, const char* question, size_t* count) {
  /* A program with a JSON library would use that; quotes and backslashes are all that needs care here. */
  const size_t length = strlen(question);
  char* message = malloc(2 * length + 64);
  char* to = message;
  size_t i;
  int pass;
  int32_t* tokens = NULL;
  size_t capacity = 0;
  to += sprintf(to, "[{\"role\": \"user\", \"content\": \"");
  for (i = 0; i < length; ++i) {
    if (question[i] == '"' || question[i] == '\\') *to++ = '\\';
    *to++ = question[i] == '\n' ? ' ' : question[i];
  }
  strcpy(to, "\"}]");
  /* The first call says how many there are. */
  for (pass = 0; pass < 2; ++pass) {
    const celer_code status = has_template ? celer_encode_chat(model, message, NULL, tokens, capacity, count)
                                             : celer_encode(model, question, tokens, capacity, count);
    if (status != CELER_OK) {
      free(tokens);
      tokens = NULL;
      break;
    }
    if (pass == 0) {
      capacity = *count;
      tokens = malloc((capacity + 1) * sizeof *tokens);
    }
  }
  free(message);
  return tokens;
}

static int answer(celer_model* model, const char* question) {
  celer_model_info info;
  celer_request request;
  celer_event event;
  int64_t id;
  int32_t* prompt;
  celer_code status;
  info.struct_size = sizeof info;
  if (celer_model_get_info(model, &info) != CELER_OK) return fail();
  celer_request_init(&request, sizeof request);
  prompt = make_prompt(model, info.has_chat_template, question, &request.prompt_count);
  if (!prompt) return fail();
  request.prompt = prompt;
  request.max_tokens = 200;
  status = celer_submit(model, &request, &id);
  free(prompt);
  if (status != CELER_OK) return fail();
  event.struct_size = sizeof event;
  do {
    if (celer_poll(model, -1, &event) != CELER_OK) return fail();
    if (event.error[0] != '\0') fprintf(stderr, "error: %s\n", event.error);
    fwrite(event.text, 1, event.text_bytes, stdout);
    fflush(stdout);
  } while (!event.last);
  printf("\n");
  return 0;
}

int main(int argc, char** argv) {
  celer_model_options options;
  celer_model* model;
  int code;
  if (argc != 3) {
    fprintf(stderr, "celer %s\nusage: chat MODEL QUESTION\n", celer_version());
    return 2;
  }
  celer_model_options_init(&options, sizeof options);
  options.model = argv[1];
  options.sequences = 1;
  if (celer_model_load(&options, &model) != CELER_OK) return fail();
  code = answer(model, argv[2]);
  celer_model_free(model);
  return code;
}
