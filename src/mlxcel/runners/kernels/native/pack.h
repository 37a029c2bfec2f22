// From a checkpoint's matrices to the packed layout of layout.h.
#pragma once

#include "layout.h"
#include "memory.h"
#include "model.h"
#include "team.h"

namespace mlx {

// Throws std::invalid_argument for a shape or format the layout cannot hold.
Matrix pack(const mlx_matrix& source, Arena& arena, Team& team);

// `down` [rank, in], `up` [out, rank].
Update pack_update(const Matrix& matrix, int adapter, int rank, const float* down, const float* up, Arena& arena);

}  // namespace mlx
