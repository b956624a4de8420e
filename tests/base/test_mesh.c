// Where ranks stand on a mesh, and the groups they form.
#include "testing.h"

#include "base/mesh.h"

enum { RANKS_MAX = 64 };
static const MeshAxis axes[] = {MESH_DATA, MESH_CP,       MESH_TP,          MESH_MICRO_BATCH, MESH_PP, MESH_EP,
                                MESH_ETP,  MESH_DISPATCH, MESH_EXPERT_DATA, MESH_STAGE,       MESH_ALL};
enum { AXES = sizeof axes / sizeof *axes };

// All meshes of degrees 1, 2, 3 and 4 whose experts' ranks divide.
static bool next_mesh(Mesh *mesh, int *at) {
    for (; *at < 4096; ++*at) {
        int rest = *at, degree[6];
        for (int i = 0; i < 6; i++, rest /= 4)
            degree[i] = 1 + rest % 4;
        *mesh = (Mesh){degree[0], degree[1], degree[2], degree[3], degree[4], degree[5], 0};
        if (mesh_ranks(mesh) > RANKS_MAX || mesh_stage_ranks(mesh) % (mesh->ep * mesh->etp)) continue;
        ++*at;
        return true;
    }
    return false;
}

static int member(MeshGroup group, int index) {
    return group.first + index * group.stride;
}

static int place_in(MeshGroup group, int rank) { // -1: not a member
    for (int i = 0; i < group.count; i++)
        if (member(group, i) == rank) return i;
    return -1;
}

static void every_rank_has_a_place_of_its_own(void **state) {
    (void)state;
    Mesh m;
    int meshes = 0;
    for (int at = 0; next_mesh(&m, &at); meshes++) {
        bool seen[RANKS_MAX] = {0}, seen_expert[RANKS_MAX] = {0};
        for (int rank = 0; rank < mesh_ranks(&m); rank++) {
            MeshPlace p = mesh_place(&m, rank);
            assert_true(p.tp < m.tp && p.cp < m.cp && p.dp < m.dp && p.pp < m.pp && p.ep < m.ep && p.etp < m.etp);
            assert_int_equal(p.data, p.dp * m.cp + p.cp);
            // The order that launchers and checkpoints count on: tp fastest, then cp, dp, pp; etp, then ep, then
            // copies.
            int dense = ((p.pp * m.dp + p.dp) * m.cp + p.cp) * m.tp + p.tp;
            int expert = ((p.pp * (int)mesh_expert_data_ranks(&m) + p.copy) * m.ep + p.ep) * m.etp + p.etp;
            assert_int_equal(dense, rank);
            assert_int_equal(expert, rank);
            assert_false(seen[dense] || seen_expert[expert]);
            seen[dense] = seen_expert[expert] = true;
        }
    }
    assert_true(meshes > 500);
}

static void groups_of_an_axis_partition_the_ranks_and_members_agree(void **state) {
    (void)state;
    Mesh m;
    for (int at = 0; next_mesh(&m, &at);)
        for (int a = 0; a < AXES; a++)
            for (int rank = 0; rank < mesh_ranks(&m); rank++) {
                MeshGroup group = mesh_group(&m, rank, axes[a]);
                assert_int_equal(mesh_ranks(&m) % group.count, 0);
                assert_true(place_in(group, rank) >= 0);
                for (int i = 0; i < group.count; i++) {
                    assert_in_range(member(group, i), 0, mesh_ranks(&m) - 1);
                    MeshGroup other = mesh_group(&m, member(group, i), axes[a]);
                    assert_memory_equal(&other, &group, sizeof group);
                }
            }
}

// What the ranks of a group have in common, and that they stand in it in the order in which they differ.
static void members_differ_along_their_axis_alone(void **state) {
    (void)state;
    Mesh m;
    for (int at = 0; next_mesh(&m, &at);)
        for (int rank = 0; rank < mesh_ranks(&m); rank++) {
            MeshPlace own = mesh_place(&m, rank);
            for (int a = 0; a < AXES; a++) {
                MeshGroup group = mesh_group(&m, rank, axes[a]);
                for (int i = 0; i < group.count; i++) {
                    MeshPlace p = mesh_place(&m, member(group, i));
                    bool stage = p.pp == own.pp, line = stage && p.tp == own.tp;
                    bool experts = stage && p.copy == own.copy;
                    switch (axes[a]) {
                    case MESH_DATA: assert_true(line && p.data == i); break;
                    case MESH_CP: assert_true(line && p.dp == own.dp && p.cp == i); break;
                    case MESH_TP: assert_true(stage && p.data == own.data && p.tp == i); break;
                    case MESH_MICRO_BATCH: assert_true(stage && p.dp == own.dp && p.cp * m.tp + p.tp == i); break;
                    case MESH_PP: assert_true(p.tp == own.tp && p.data == own.data && p.pp == i); break;
                    case MESH_EP: assert_true(experts && p.etp == own.etp && p.ep == i); break;
                    case MESH_ETP: assert_true(experts && p.ep == own.ep && p.etp == i); break;
                    case MESH_DISPATCH: assert_true(experts && p.ep * m.etp + p.etp == i); break;
                    case MESH_EXPERT_DATA:
                        assert_true(stage && p.ep == own.ep && p.etp == own.etp && p.copy == i);
                        break;
                    case MESH_STAGE: assert_true(stage); break;
                    case MESH_ALL: assert_int_equal(member(group, i), i); break;
                    }
                }
            }
        }
}

static void groups_are_as_large_as_the_degrees_say(void **state) {
    (void)state;
    Mesh m = {.dp = 4, .tp = 2, .pp = 2, .ep = 4, .cp = 3, .etp = 2};
    const int counts[AXES] = {12, 3, 2, 6, 2, 4, 2, 8, 3, 24, 48};
    for (int a = 0; a < AXES; a++)
        assert_int_equal(mesh_group(&m, 17, axes[a]).count, counts[a]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_a_place_of_its_own),
        cmocka_unit_test(groups_of_an_axis_partition_the_ranks_and_members_agree),
        cmocka_unit_test(members_differ_along_their_axis_alone),
        cmocka_unit_test(groups_are_as_large_as_the_degrees_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
