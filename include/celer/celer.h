/* celer in C: what a program in C, Rust, Go or Python's ctypes binds. libceler.so exports these functions and nothing
 * else; its soname changes when they do.
 *
 *   celer_model_options options;
 *   celer_model_options_init(&options, sizeof options);
 *   options.model = "model.gguf";
 *   celer_model* model;
 *   if (celer_model_load(&options, &model) != CELER_OK) puts(celer_last_error());
 *
 * Every function that can fail returns a celer_code; celer_last_error() then has one sentence about it, for the
 * thread that called. Nothing here prints, exits, installs signal handlers or throws.
 *
 * Structs begin with `struct_size`, the size that the caller's header has; _init functions set it beside the defaults. So
 * a program that was compiled with an older header works with a newer library of the same soname. Texts are UTF-8 and end with a zero byte. A pointer that a
 * function takes may be freed when it returns; how long those hold that it gives is said beside it.
 *
 * Models and networks have threads, which do not survive fork(). In a child of a process that had loaded one, functions
 * return CELER_DEVICE and say so: load in the child alone, or start it with exec(). */
#ifndef CELER_CELER_H
#define CELER_CELER_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CELER_API
#else
#define CELER_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum celer_code {
  CELER_OK = 0,
  CELER_INVALID = 1,   /* an argument or a request */
  CELER_NOT_FOUND = 2, /* a file or a name */
  CELER_CORRUPT = 3,   /* a file that is broken */
  CELER_UNSUPPORTED = 4,
  CELER_OUT_OF_MEMORY = 5,
  CELER_IO = 6,
  CELER_DEVICE = 7,
  CELER_CANCELLED = 8,
  CELER_NOT_FINITE = 9, /* the model computed NaN or infinity */
  CELER_TIMEOUT = 10    /* nothing came in time, or nothing is in flight */
} celer_code;

CELER_API const char* celer_version(void); /* "0.3.0-dev" */
/* Of the calling thread, until its next call that fails; "" if none has. Never null. */
CELER_API const char* celer_last_error(void);

typedef enum celer_log_level {
  CELER_LOG_DEBUG = 0,
  CELER_LOG_INFO = 1,
  CELER_LOG_WARNING = 2,
  CELER_LOG_ERROR = 3
} celer_log_level;
/* A line, which holds until the function returns. Any thread calls it, one at a time; it must not call celer. */
typedef void (*celer_log_function)(void* user, celer_log_level level, const char* message);
/* Where messages go, warnings about files for the most part; at first, and with null, nowhere. For the whole process. */
CELER_API void celer_set_log(celer_log_function function, void* user, celer_log_level least);

/* --- language models: token ids in, token ids and text out ---------------------------------------------------- */

typedef struct celer_model celer_model;

typedef struct celer_model_options {
  size_t struct_size;
  const char* model;         /* a Hugging Face folder, a GGUF file, a llama2.c checkpoint */
  const char* tokenizer;     /* a file or folder; null: beside the model or inside it */
  const char* chat_template; /* a Jinja file; null: the model's own */
  const char* weights;       /* "stored", "f32", "f16", "bf16", "int8", "int8-g64", "int4", ... */
  const char* kv;            /* "f16", "f32", "bf16", "int8", ... */
  const char* kv_memory;     /* "4GiB", "50%"; null: by itself */
  const char* device;        /* "cpu", "cuda", "cuda:1", "auto"; several share the layers: "cuda:0,cuda:1" */
  int32_t threads;           /* 0: as many as this process may use */
  int32_t prefix_cache;      /* 1 or 0 */
  int64_t context;           /* tokens of the longest sequence; 0: the model's own limit, at most 4096 */
  int64_t sequences;         /* how many long ones are expected at once; 0: as many as there is memory for */
  /* Where the layers are, if not all on one device; null: not said. */
  const char* split;      /* of several devices, proportions of layers: "3,1" */
  const char* gpu_memory; /* of each GPU, that may be taken: "8GiB" */
  const char*
      gpu_layers; /* "20": the last so many on the GPU, the others on the CPU; "auto": as many as fit */
  const char* cpu_experts; /* "20", "all": of so many layers the experts on the CPU */
  const char* place; /* "ffn_.*_exps=cpu": patterns of tensors of layers and experts, with commas between */
} celer_model_options;
CELER_API void celer_model_options_init(celer_model_options* options, size_t struct_size);

/* *model is null if it fails. */
CELER_API celer_code celer_model_load(const celer_model_options* options, celer_model** model);
/* Cancels what is in flight and frees everything; null is allowed. No other call may use the model. */
CELER_API void celer_model_free(celer_model* model);

typedef struct celer_model_info {
  size_t struct_size;
  int64_t vocab;
  int64_t context;   /* tokens of the longest sequence */
  int64_t kv_tokens; /* that there is room for, of all sequences together */
  int64_t hidden, layers;
  int64_t weight_bytes; /* read by one decode step */
  int32_t threads;
  int32_t has_chat_template;
  const char* architecture; /* these two hold as long as the model */
  const char* device;
} celer_model_info;
/* Set info->struct_size to sizeof(celer_model_info) first. */
CELER_API celer_code celer_model_get_info(const celer_model* model, celer_model_info* info);

/* These three write at most `capacity` elements and set *count to how many there are: call again with more room if that
 * is larger. `tokens` and `text` may be null with a capacity of 0. */
CELER_API celer_code celer_encode(const celer_model* model, const char* text, int32_t* tokens,
                                  size_t capacity, size_t* count);
/* A conversation through the chat template. `messages`: a JSON array as in OpenAI's API. `tools`: a JSON array, or null.
 * No message can say a control token. The prompt ends with the beginning of the answer. */
CELER_API celer_code celer_encode_chat(const celer_model* model, const char* messages, const char* tools,
                                       int32_t* tokens, size_t capacity, size_t* count);
/* *count is in bytes, without the zero byte, which is written if there is room for all of the text and it. */
CELER_API celer_code celer_decode(const celer_model* model, const int32_t* tokens, size_t token_count,
                                  char* text, size_t capacity, size_t* count);

typedef struct celer_request {
  size_t struct_size;
  const int32_t* prompt;
  size_t prompt_count;
  int64_t max_tokens; /* 256 */
  int64_t min_tokens;
  int32_t n;                /* answers; 1 */
  int32_t ignore_end;       /* 1: go on past the model's own end of turn */
  int32_t priority;         /* lower goes first */
  int32_t top_k;            /* 0: all */
  float temperature;        /* 0: always the most likely token */
  float top_p;              /* 1 */
  float min_p;              /* 0 */
  float repetition_penalty; /* 1 */
  float presence_penalty, frequency_penalty;
  uint64_t seed;           /* same seed, same tokens */
  const char* const* stop; /* strings that end the answer and are not part of it */
  size_t stop_count;
  const int32_t* stop_tokens; /* beside the model's own end */
  size_t stop_token_count;
  double timeout_seconds; /* 0: none */
} celer_request;
CELER_API void celer_request_init(celer_request* request, size_t struct_size);

/* Checks the request and queues it; any thread may. The id names it in events. */
CELER_API celer_code celer_submit(celer_model* model, const celer_request* request, int64_t* id);
/* Asynchronous: within one step the request's last event comes. CELER_NOT_FOUND if it has ended or never was. */
CELER_API celer_code celer_cancel(celer_model* model, int64_t id);

typedef enum celer_finish {
  CELER_GOES_ON = 0,
  CELER_STOP = 1,   /* the model's end, a stop token or a stop string */
  CELER_LENGTH = 2, /* max_tokens */
  CELER_FINISH_CANCELLED = 3,
  CELER_FINISH_DEADLINE = 4,
  CELER_FINISH_ERROR = 5 /* event.error says why */
} celer_finish;

typedef struct celer_event {
  size_t struct_size;
  int64_t request;
  int32_t answer;        /* of the request's n */
  int32_t token;         /* -1: none */
  celer_finish finish;   /* of the answer */
  int32_t last;          /* 1: the request's last event */
  int64_t cached_tokens; /* of the prompt, with a request's first event: they were computed already */
  const char*
      text; /* what it adds to the answer, whole code points; holds until the model's next celer_poll() */
  size_t text_bytes;
  const char* error; /* "", or one sentence; likewise */
} celer_event;
/* The next event of any request of this model, waiting for it: 0 does not wait, -1 waits as long as a request is in
 * flight. CELER_TIMEOUT if there is none. One thread at a time. Set event->struct_size to sizeof(celer_event) first. */
CELER_API celer_code celer_poll(celer_model* model, int64_t timeout_ms, celer_event* event);

/* --- networks out of ONNX and PNNX files ---------------------------------------------------------------------- */

typedef struct celer_graph celer_graph;

typedef struct celer_graph_options {
  size_t struct_size;
  int32_t optimize; /* 1 or 0 */
  int32_t threads;  /* 0: those that the process shares */
  /* 1: of a quantized network, integer arithmetic also where floats are faster on this machine, for the same
   * bits on every machine. */
  int32_t integers;
} celer_graph_options;
CELER_API void celer_graph_options_init(celer_graph_options* options, size_t struct_size);

/* `options` may be null. *graph is null if it fails. */
CELER_API celer_code celer_graph_load(const char* path, const celer_graph_options* options,
                                      celer_graph** graph);
/* null is allowed */
CELER_API void celer_graph_free(celer_graph* graph);
CELER_API size_t celer_graph_input_count(const celer_graph* graph);
CELER_API size_t celer_graph_output_count(const celer_graph* graph);

/* Dense and row-major. As a port of a network: `bytes` is null, and a dimension of -1 may be of any size. */
typedef struct celer_tensor {
  size_t struct_size;
  const char* name;
  const char*
      dtype; /* "f32", "f64", "f16", "bf16", "i8" to "i64", "u8" to "u64", "bool"; "" if the file does not say */
  const int64_t* shape;
  size_t rank;
  const void* bytes;
  size_t byte_count;
} celer_tensor;
/* What they point to holds as long as the graph. Set port->struct_size to sizeof(celer_tensor) first. */
CELER_API celer_code celer_graph_input(const celer_graph* graph, size_t at, celer_tensor* port);
CELER_API celer_code celer_graph_output(const celer_graph* graph, size_t at, celer_tensor* port);
/* Every input by name. `outputs` has room for celer_graph_output_count() tensors, which hold until the next run; the
 * first one's struct_size is set by the caller and says how far apart they are. One thread at a time uses a graph. */
CELER_API celer_code celer_graph_run(celer_graph* graph, const celer_tensor* inputs, size_t input_count,
                                     celer_tensor* outputs);

/* --- what is physically possible ------------------------------------------------------------------------------ */

typedef struct celer_limits {
  size_t struct_size;
  double weight_bits, kv_bits; /* 16 and 16; fractional ones are allowed */
  int64_t batch;               /* 1 */
  int64_t prompt;              /* 1024 tokens */
  int64_t context;             /* 1024 tokens of each sequence while it decodes */
  /* Out: */
  double weight_bytes, kv_bytes_per_token;
  double prefill_seconds;      /* to the first token of `batch` prompts */
  double decode_seconds;       /* of one step of all sequences */
  double tokens_per_second;    /* of all sequences together */
  int64_t kv_capacity_tokens;  /* that fit beside the weights; -1: the weights alone do not fit */
  const char* decode_bound_by; /* "reading weights", "reading KV", "arithmetic"; always valid */
} celer_limits;
CELER_API void celer_limits_init(celer_limits* limits, size_t struct_size);
/* Of built-in names: "llama-3.1-8b", "rtx4090". */
CELER_API celer_code celer_limits_compute(const char* model, const char* machine, celer_limits* limits);

#ifdef __cplusplus
}
#endif
#endif
