// libzmq, loaded when it is first needed: a server without KV events runs where it is not installed.
#pragma once

#include <zmq.h>

#include "base/result.h"

namespace celer::server {

struct ZmqLibrary {
  decltype(&zmq_ctx_new) ctx_new;
  decltype(&zmq_ctx_term) ctx_term;
  decltype(&zmq_socket) socket;
  decltype(&zmq_close) close;
  decltype(&zmq_setsockopt) setsockopt;
  decltype(&zmq_getsockopt) getsockopt;
  decltype(&zmq_bind) bind;
  decltype(&zmq_connect) connect;
  decltype(&zmq_send) send;
  decltype(&zmq_msg_init_data) msg_init_data;
  decltype(&zmq_msg_send) msg_send;
  decltype(&zmq_msg_close) msg_close;
  decltype(&zmq_recv) recv;
  decltype(&zmq_errno) last_error;
  decltype(&zmq_strerror) strerror;

  static Result<const ZmqLibrary*> Load();
};

}  // namespace celer::server
